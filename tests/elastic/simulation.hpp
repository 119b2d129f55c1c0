// The membership protocol over a simulated clock, network and store: one thread, and all random choices follow from a
// seed. The faults are in simulation/faults.hpp, their end in simulation/healing.hpp.
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
  run(std::uint64_t seed, const world& parameters)
      : random_(seed), world_(parameters), groups_(static_cast<std::size_t>(parameters.hosts), 0) {
    for (int i = 0; i < parameters.members; ++i) start_process(static_cast<std::uint64_t>(i), now_ + draw(0, 20));
    plan_faults();
  }

  /// Runs the simulation. Faults begin within 3.1 s. At 3.5 s a quorum is restored and must progress within a bound of
  /// turns. The other processes are restored at 9.5 s, and at 16 s everything must have made progress on failure.
  outcome finish() {
    const auto end = time{} + milliseconds(16000);
    while (!queue_.empty() && queue_.top().when <= end) {
      const auto next = queue_.top();
      queue_.pop();
      now_ = next.when;
      dispatch(next);
    }
    auto result = ledger_.settle(now_);
    result.healing = healing_;
    result.turns = turns_;
    return result;
  }

 private:
  // ---- processes ----
  struct event {
    time when;
    std::uint64_t order;
    member_id owner;  // 0: of no member
    std::shared_ptr<std::function<void()>> callback;
    bool operator<(const event& other) const { return when != other.when ? when > other.when : order > other.order; }
  };

  microseconds draw(int low, int high) {  // in milliseconds
    return microseconds(low * 1000 +
                        static_cast<int>(random_.below(static_cast<std::uint64_t>(high - low) * 1000 + 1)));
  }
  bool chance(double p) { return random_.uniform() < p; }
  void at(time when, member_id owner, std::function<void()> callback) {
    queue_.push({when, ++order_, owner, std::make_shared<std::function<void()>>(std::move(callback))});
  }
  void after(microseconds delay, member_id owner, std::function<void()> callback) {
    at(now_ + delay, owner, std::move(callback));
  }
  process* find(member_id id) {
    const auto found = processes_.find(id);
    return found != processes_.end() && found->second->alive ? found->second.get() : nullptr;
  }
  void dispatch(const event& next) {
    if (next.owner == 0) return (*next.callback)();
    auto* const peer = find(next.owner);
    if (peer == nullptr) return;
    if (peer->paused_until > now_) return peer->held.push_back(next.callback);
    (*next.callback)();
    if (peer->alive) carry_out(*peer);
  }

  void pause(process& peer, time until) {
    peer.paused_until = until;
    at(until, 0, [this, id = peer.id] { wake(id); });
    trace(std::to_string(peer.id) + " stands still");
  }
  void wake(member_id id) {
    auto* const peer = find(id);
    if (peer == nullptr || peer->paused_until > now_) return;
    for (auto& callback : std::exchange(peer->held, {})) queue_.push({now_, ++order_, id, std::move(callback)});
  }

  elastic::membership_policy policy() const {
    elastic::membership_policy policy;
    policy.initial_members = world_.members;
    policy.min_members = world_.min;
    policy.heartbeat_interval = milliseconds(50);
    policy.suspicion_timeout = milliseconds(250);
    policy.quorum_timeout = milliseconds(2500);
    policy.monitors = world_.monitors;
    return policy;
  }
  void start_process(std::uint64_t order, time when) {
    elastic::member self;
    self.id = ++last_id_;
    self.host = random_.below(static_cast<std::uint64_t>(world_.hosts));
    self.order = order;
    at(when, 0, [this, self] {
      auto created = std::make_unique<process>(self, policy(), now_);
      auto& peer = *processes_.emplace(self.id, std::move(created)).first->second;
      tick(peer.id);
      look_at_store(peer.id);
    });
  }
  void tick(member_id id) {
    after(draw(8, 14), id, [this, id] {
      auto& peer = *find(id);
      ++peer.turns;
      peer.protocol.tick(now_);
      tick(id);
    });
  }

  // ---- network ----
  bool reaches(std::uint64_t sender, std::uint64_t receiver) const {
    return sender == receiver || (groups_[sender] & (std::uint64_t{1} << receiver)) == 0;
  }
  void send(process& sender, member_id receiver, bool reliable, std::function<void(process&)> callback) {
    const auto found = processes_.find(receiver);
    if (found == processes_.end()) return;
    if (!reaches(sender.host, found->second->host) || cut_.contains({sender.id, receiver})) return;
    if (!reliable && chance(world_.loss)) return;
    const int copies = !reliable && chance(world_.duplicates) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const auto delay = !reliable && chance(0.05) ? draw(0, 120) : draw(0, 3);
      after(delay, receiver, [this, receiver, callback] { callback(*find(receiver)); });
    }
  }

  // ---- the store ----
  void look_at_store(member_id id) {
    after(draw(20, 100), id, [this, id] {
      ask_store(id);
      look_at_store(id);
    });
  }
  bool reaches_store(process& peer) const {
    return (cut_from_store_ & (std::uint64_t{1} << peer.host)) == 0 && !without_store_.contains(peer.id);
  }
  void ask_store(member_id id) {
    auto* const peer = find(id);
    if (peer == nullptr || !reaches_store(*peer) || version_ == 0) return;
    after(draw(0, 3), id,
          [this, id, version = version_, record = record_] { find(id)->protocol.on_record(now_, version, record); });
  }
  void swap(process& peer, const act::swap& requested) {
    const auto id = peer.id;
    if (!reaches_store(peer)) {
      after(milliseconds(150), id, [this, id] { find(id)->protocol.store_failed(now_); });
      return;
    }
    ++swaps_under_way_;
    at(now_ + draw(0, 3), 0, [this, id, requested] {
      --swaps_under_way_;
      const bool done = requested.expected == version_;
      if (done) {
        ledger_.swaps(now_, requested.next);
        ++version_;
        record_ = requested.next;
        for (const auto& [other, process] : processes_) ask_store(other);
        plan_echo();
      }
      auto* const asker = find(id);
      if (asker == nullptr) return;
      if (!reaches_store(*asker) || chance(0.02)) {  // the reply is lost
        after(milliseconds(150), id, [this, id] { find(id)->protocol.store_failed(now_); });
      } else {
        after(draw(0, 3), id, [this, id, version = version_, record = record_] {
          find(id)->protocol.on_record(now_, version, record);
        });
      }
    });
  }

  // ---- actions of the protocol ----
  void carry_out(process& peer) {
    for (;;) {
      const auto actions = peer.outlet.take();
      if (actions.empty() || !peer.alive) return;
      for (const auto& requested : actions) std::visit([&](const auto& a) { perform(peer, a); }, requested);
    }
  }
  void perform(process& peer, const act::send& a) {
    for (const auto id : a.recipients) {
      send(peer, id, false, [this, message = a.message](process& other) {
        other.protocol.on_heartbeat(now_, message);
        other.protocol.tick(now_);
      });
    }
  }
  void perform(process& peer, const act::swap& a) {
    ledger_.proposes(now_, peer, a.next);
    swap(peer, a);
  }
  void perform(process& peer, const act::stop& a) {
    trace(std::to_string(peer.id) + " is to stop: " + a.why);
    // A computing rank notices the request late, and now and then very late.
    const auto late = chance(0.02) ? draw(100, 1500) : draw(0, 8);
    peer.must_stop = true;
    after(late, peer.id, [this, id = peer.id, g = peer.generation] {
      auto& self = *find(id);
      if (self.generation == g) stop_session(self);
    });
  }
  void perform(process& peer, const act::halt& a) { peer.halt = a.step; }
  void perform(process&, const act::kill& a) {
    at(now_ + draw(0, 2), 0, [this, id = a.peer.id] { crash(id); });
  }
  void perform(process&, const act::note&) {}
  void perform(process& peer, const act::form& a) {
    ++peer.attempt;
    peer.generation = a.group.generation;
    peer.must_stop = false;
    peer.group = a.group;
    peer.hellos.clear();
    peer.waits = false;
    peer.halt = 0;
    peer.has_state = std::count(a.group.state_sources.begin(), a.group.state_sources.end(), peer.id) > 0;
    if (peer.has_state && peer.step != a.group.progress)
      throw violation("a holder does not hold the step of its record");
    greet(peer);
    time_out_later(peer, draw(350, 400));
  }
  void perform(process& peer, const act::end& a) {
    peer.ended = true;
    ledger_.ends(now_, peer, a);
    crash(peer.id);
  }

  // ---- the session of a process: simulation/session.hpp ----
  void stop_session(process& peer);
  void greet(process& peer);
  void advance_forming(process& peer);
  void send_state(process& holder, member_id receiver);
  void begin_step(process& peer);
  void try_commit(process& peer);
  void time_out_later(process& peer, microseconds limit);

  // ---- faults: simulation/faults.hpp ----
  void crash(member_id id);
  void reset(member_id first, member_id second);
  member_id anybody();
  void plan_faults();
  void plan_echo();
  void isolate(std::uint64_t host);
  void one_fault();
  void after_cut(microseconds delay, std::function<void()> heal);

  // ---- the end of faults: simulation/healing.hpp ----
  [[nodiscard]] std::set<member_id> draw_quorum();
  void heal_a_quorum();
  void leave_faulty(process& peer);
  void await_progress();
  [[nodiscard]] bool is_excused() const;
  void heal_the_rest();

  void trace(const std::string& line) const { ledger_.trace(now_, line); }

  muster::random_stream random_;
  world world_;
  time now_{};
  std::uint64_t order_ = 0;
  std::uint64_t last_id_ = 0;
  std::priority_queue<event> queue_;
  crew processes_;
  std::vector<std::uint64_t> groups_;  // by host: bits of the hosts that it does not reach
  std::uint64_t cut_from_store_ = 0;
  int swaps_under_way_ = 0;
  microseconds last_fault_{0};
  int echoes_ = 0;
  std::uint64_t version_ = 0;
  elastic::generation_record record_;
  ledger ledger_{processes_, record_};

  // After the end of the faults.
  std::set<member_id> quorum_;
  std::set<std::pair<member_id, member_id>> cut_;  // sender, receiver
  std::set<member_id> without_store_;
  time healed_at_{};
  std::uint64_t everywhere_ = 0;  // steps that all members had committed at that time
  std::uint64_t turns_ = 0;
  outcome::liveness healing_ = outcome::liveness::no_quorum;

  std::map<std::pair<member_id, std::uint64_t>, std::set<member_id>> early_;
  std::map<std::tuple<member_id, std::uint64_t, std::uint64_t>, std::set<member_id>> parts_;
};

}  // namespace simulation
