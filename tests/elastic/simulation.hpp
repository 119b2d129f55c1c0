// The membership protocol over a simulated clock, network and store: one thread, everything drawn from a seed. What
// happens to it is in simulation/faults.hpp, what is made whole afterwards in simulation/healing.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <muster/core/random.hpp>

#include "simulation/ledger.hpp"
#include "simulation/process.hpp"

namespace simulation {

class run {
 public:
  run(std::uint64_t seed, const world& of) : random_(seed), world_(of), groups_(static_cast<std::size_t>(of.hosts), 0) {
    for (int i = 0; i < of.members; ++i) start_process(static_cast<std::uint64_t>(i), now_ + draw(0, 20));
    plan_faults();
  }

  /// Faults begin within 3.1 s. At 3.5 s a quorum is made whole and must progress within a bound of turns; the others
  /// are whole at 9.5 s, and at 16 s everything must have kept on failure.
  outcome finish() {
    const auto end = time{} + milliseconds(16000);
    while (!queue_.empty() && queue_.top().when <= end) {
      const auto next = queue_.top();
      queue_.pop();
      now_ = next.when;
      dispatch(next);
    }
    auto seen = ledger_.settle(now_);
    seen.healing = healing_;
    seen.turns = turns_;
    return seen;
  }

 private:
  // ---- processes ----
  struct event {
    time when;
    std::uint64_t order;
    member_id whose;  // 0: of no member
    std::shared_ptr<std::function<void()>> what;
    bool operator<(const event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  microseconds draw(int low, int high) {  // milliseconds
    return microseconds(low * 1000 +
                        static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low) * 1000 + 1)));
  }
  bool chance(double p) { return random_.uniform() < p; }
  void at(time when, member_id whose, std::function<void()> what) {
    queue_.push({when, ++order_, whose, std::make_shared<std::function<void()>>(std::move(what))});
  }
  void after(microseconds delay, member_id whose, std::function<void()> what) {
    at(now_ + delay, whose, std::move(what));
  }
  process* find(member_id id) {
    const auto found = processes_.find(id);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  void dispatch(const event& next) {
    if (next.whose == 0) return (*next.what)();
    auto* const one = find(next.whose);
    if (one == nullptr) return;
    if (one->paused_until > now_) return one->held.push_back(next.what);
    (*next.what)();
    if (one->alive) carry_out(*one);
  }

  void pause(process& one, time until) {
    one.paused_until = until;
    at(until, 0, [this, id = one.id] { wake(id); });
    tell(std::to_string(one.id) + " stands still");
  }
  void wake(member_id id) {
    auto* const one = find(id);
    if (one == nullptr || one->paused_until > now_) return;
    for (auto& what : std::exchange(one->held, {})) queue_.push({now_, ++order_, id, std::move(what)});
  }

  elastic::membership_policy policy() const {
    elastic::membership_policy made;
    made.initial = world_.members;
    made.min = world_.min;
    made.beat = milliseconds(50);
    made.suspicion_timeout = milliseconds(250);
    made.quorum_timeout = milliseconds(2500);
    made.monitors = world_.monitors;
    return made;
  }
  void start_process(std::uint64_t order, time when) {
    elastic::member self;
    self.id = ++last_id_;
    self.host = random_.below(static_cast<std::uint64_t>(world_.hosts));
    self.order = order;
    at(when, 0, [this, self] {
      auto made = std::make_unique<process>(self, policy(), now_);
      auto& one = *processes_.emplace(self.id, std::move(made)).first->second;
      tick(one.id);
      look_at_store(one.id);
    });
  }
  void tick(member_id id) {
    after(draw(8, 14), id, [this, id] {
      auto& one = *find(id);
      ++one.turns;
      one.protocol.tick(now_);
      tick(id);
    });
  }

  // ---- network ----
  bool reaches(std::uint64_t from, std::uint64_t to) const {
    return from == to || (groups_[from] & (std::uint64_t{1} << to)) == 0;
  }
  void send(process& from, member_id to, bool reliable, std::function<void(process&)> what) {
    const auto other = processes_.find(to);
    if (other == processes_.end()) return;
    if (!reaches(from.host, other->second->host) || cut_.contains({from.id, to})) return;
    if (!reliable && chance(world_.loss)) return;
    const int copies = !reliable && chance(world_.duplicates) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const auto slow = !reliable && chance(0.05) ? draw(0, 120) : draw(0, 3);
      after(slow, to, [this, to, what] { what(*find(to)); });
    }
  }

  // ---- the store ----
  void look_at_store(member_id id) {
    after(draw(20, 100), id, [this, id] {
      ask_store(id);
      look_at_store(id);
    });
  }
  bool store_hears(process& one) const {
    return (cut_from_store_ & (std::uint64_t{1} << one.host)) == 0 && !without_store_.contains(one.id);
  }
  void ask_store(member_id id) {
    auto* const one = find(id);
    if (one == nullptr || !store_hears(*one) || version_ == 0) return;
    after(draw(0, 3), id,
          [this, id, version = version_, record = record_] { find(id)->protocol.learn(now_, version, record); });
  }
  void swap(process& one, const act::swap& wanted) {
    const auto id = one.id;
    if (!store_hears(one)) {
      after(milliseconds(150), id, [this, id] { find(id)->protocol.store_failed(now_); });
      return;
    }
    ++swaps_under_way_;
    at(now_ + draw(0, 3), 0, [this, id, wanted] {
      --swaps_under_way_;
      const bool done = wanted.expected == version_;
      if (done) {
        ledger_.swaps(now_, wanted.next);
        ++version_;
        record_ = wanted.next;
        for (const auto& [other, its] : processes_) ask_store(other);
        plan_echo();
      }
      auto* const asker = find(id);
      if (asker == nullptr) return;
      if (!store_hears(*asker) || chance(0.02)) {  // the answer is lost
        after(milliseconds(150), id, [this, id] { find(id)->protocol.store_failed(now_); });
      } else {
        after(draw(0, 3), id,
              [this, id, version = version_, record = record_] { find(id)->protocol.learn(now_, version, record); });
      }
    });
  }

  // ---- what the protocol wants ----
  void carry_out(process& one) {
    for (;;) {
      const auto actions = one.wanted.take();
      if (actions.empty() || !one.alive) return;
      for (const auto& what : actions) std::visit([&](const auto& a) { perform(one, a); }, what);
    }
  }
  void perform(process& one, const act::say& a) {
    for (const auto id : a.to) {
      send(one, id, false, [this, said = a.what](process& other) {
        other.protocol.hear(now_, said);
        other.protocol.tick(now_);
      });
    }
  }
  void perform(process& one, const act::swap& a) {
    ledger_.proposes(now_, one, a.next);
    swap(one, a);
  }
  void perform(process& one, const act::stop& a) {
    tell(std::to_string(one.id) + " is to stop: " + a.why);
    // Computing, it sees that late; now and then very late.
    const auto late = chance(0.02) ? draw(100, 1500) : draw(0, 8);
    one.told = true;
    after(late, one.id, [this, id = one.id, g = one.generation] {
      auto& self = *find(id);
      if (self.generation == g) stop_session(self);
    });
  }
  void perform(process& one, const act::halt& a) { one.halt = a.step; }
  void perform(process&, const act::kill& a) {
    at(now_ + draw(0, 2), 0, [this, id = a.peer.id] { crash(id); });
  }
  void perform(process&, const act::note&) {}
  void perform(process& one, const act::form& a) {
    ++one.attempt;
    one.generation = a.group.generation;
    one.told = false;
    one.group = a.group;
    one.hellos.clear();
    one.waits = false;
    one.halt = 0;
    one.has_state = std::count(a.group.state_sources.begin(), a.group.state_sources.end(), one.id) > 0;
    if (one.has_state && one.step != a.group.step) throw violation("a holder does not hold the step of its record");
    greet(one);
    give_up_later(one, draw(350, 400));
  }
  void perform(process& one, const act::end& a) {
    one.ended = true;
    ledger_.ends(now_, one, a);
    crash(one.id);
  }

  // ---- the session of a process: simulation/session.hpp ----
  void stop_session(process& one);
  void greet(process& one);
  void advance_forming(process& one);
  void give_state(process& holder, member_id to);
  void begin_step(process& one);
  void try_commit(process& one);
  void give_up_later(process& one, microseconds limit);

  // ---- faults: simulation/faults.hpp ----
  void crash(member_id id);
  void reset(member_id one, member_id other);
  member_id anybody();
  void plan_faults();
  void plan_echo();
  void isolate(std::uint64_t host);
  void one_fault();
  void after_cut(microseconds delay, std::function<void()> heal);

  // ---- the end of faults: simulation/healing.hpp ----
  [[nodiscard]] std::set<member_id> draw_quorum();
  void heal_a_quorum();
  void leave_faulty(process& one);
  void await_progress();
  [[nodiscard]] bool is_excused() const;
  void heal_the_rest();

  void tell(const std::string& line) const { ledger_.tell(now_, line); }

  muster::random_stream random_;
  world world_;
  time now_{};
  std::uint64_t order_ = 0;
  std::uint64_t last_id_ = 0;
  std::priority_queue<event> queue_;
  crew processes_;
  std::vector<std::uint64_t> groups_;  // by host: those it does not reach, as bits
  std::uint64_t cut_from_store_ = 0;
  int swaps_under_way_ = 0;
  microseconds last_fault_{0};
  int echoes_ = 0;
  std::uint64_t version_ = 0;
  elastic::generation_record record_;
  ledger ledger_{processes_, record_};

  // Since the faults ended.
  std::set<member_id> quorum_;
  std::set<std::pair<member_id, member_id>> cut_;  // from, to
  std::set<member_id> without_store_;
  time healed_at_{};
  std::uint64_t everywhere_ = 0;  // steps that all had committed then
  std::uint64_t turns_ = 0;
  outcome::liveness healing_ = outcome::liveness::no_quorum;

  std::map<std::pair<member_id, std::uint64_t>, std::set<member_id>> early_;
  std::map<std::tuple<member_id, std::uint64_t, std::uint64_t>, std::set<member_id>> parts_;
};

}  // namespace simulation
