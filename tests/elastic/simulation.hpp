// The membership protocol over a simulated clock, network and store: one thread, everything drawn from a seed.
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

  /// Faults end after 4 s; at 12 s everything must have kept on failure.
  outcome finish() {
    const auto end = time{} + milliseconds(12000);
    while (!queue_.empty() && queue_.top().when <= end) {
      const auto next = queue_.top();
      queue_.pop();
      now_ = next.when;
      dispatch(next);
    }
    return ledger_.settle(now_);
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
    if (one->paused_until > now_) {
      queue_.push({one->paused_until, ++order_, next.whose, next.what});
      return;
    }
    (*next.what)();
    if (one->alive) carry_out(*one);
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
      find(id)->protocol.tick(now_);
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
    if (!reaches(from.host, other->second->host)) return;
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
  bool store_hears(process& one) const { return (cut_from_store_ & (std::uint64_t{1} << one.host)) == 0; }
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
    at(now_ + draw(0, 3), 0, [this, id, wanted] {
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
    at(now_ + draw(0, 2), 0, [this, id = a.who.id] { crash(id); });
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

  // ---- the session of a process: the same rules as the library's ----
  void stop_session(process& one) {
    if (one.generation == 0) return;
    one.generation = 0;
    one.waits = false;
    tell(std::to_string(one.id) + " has stopped at step " + std::to_string(one.step));
    one.protocol.stopped(now_);
  }
  void greet(process& one) {
    for (const auto& m : one.group.members) {
      if (m.id == one.id) continue;
      send(one, m.id, true, [this, from = one.id, g = one.generation](process& other) {
        early_[{other.id, g}].insert(from);
        advance_forming(other);
      });
    }
    advance_forming(one);
  }
  void advance_forming(process& one) {
    if (one.generation == 0) return;
    one.hellos = early_[{one.id, one.generation}];
    if (one.hellos.size() + 1 < one.group.members.size() || one.waits) return;
    if (one.has_state) return begin_step(one);
    const auto& state_sources = one.group.state_sources;
    send(one, state_sources[random_.below(state_sources.size())], true,
         [this, to = one.id, g = one.generation](process& holder) {
           if (holder.generation != g || !holder.has_state) return;
           if (holder.step != holder.group.step) return;  // cannot be: it needs this member to go on
           after(draw(0, 40), holder.id, [this, from = holder.id, to, g] {
             auto& giver = *find(from);
             if (giver.generation == g) give_state(giver, to);
           });
         });
  }
  void give_state(process& holder, member_id to) {
    send(holder, to, true, [this, g = holder.generation, step = holder.step, state = holder.state](process& other) {
      if (other.generation != g || other.has_state) return;
      other.step = step;
      other.state = state;
      other.has_state = true;
      other.protocol.committed(step, step);
      begin_step(other);
    });
  }
  void begin_step(process& one) {
    one.waits = true;
    if (one.halt != 0 && one.step >= one.halt) return stop_session(one);
    after(draw(20, 50), one.id, [this, id = one.id, attempt = one.attempt, g = one.generation] {
      auto& self = *find(id);
      if (self.attempt != attempt || self.generation != g) return;
      const auto key = std::tuple(id, g, self.step + 1);
      parts_[key].insert(id);
      for (const auto& m : self.group.members) {
        if (m.id == id) continue;
        send(self, m.id, true, [this, id, g, step = self.step + 1](process& other) {
          parts_[{other.id, g, step}].insert(id);
          try_commit(other);
        });
      }
      try_commit(self);
      give_up_later(self, draw(600, 700));
    });
  }
  void try_commit(process& one) {
    if (one.generation == 0 || !one.waits) return;
    const auto found = parts_.find({one.id, one.generation, one.step + 1});
    if (found == parts_.end() || found->second.size() < one.group.members.size() || !found->second.contains(one.id))
      return;
    parts_.erase(found);
    ++one.step;
    one.state = muster::mix(one.state ^ (one.step << 20) ^ one.generation);
    ++one.attempt;
    ledger_.commits(now_, one);
    one.protocol.committed(one.step, one.step);
    begin_step(one);
  }
  // A collective's deadline, or the end of a connection: those that are missing are suspect.
  void give_up_later(process& one, microseconds limit) {
    after(limit, one.id, [this, id = one.id, attempt = one.attempt] {
      auto& self = *find(id);
      if (self.attempt != attempt || self.generation == 0) return;
      for (const auto& m : self.group.members) {
        const bool forming = self.hellos.size() + 1 < self.group.members.size();
        const auto& seen = forming ? self.hellos : parts_[{id, self.generation, self.step + 1}];
        // Of a generation that is over they are late for that reason.
        if (m.id != id && !self.told && !seen.contains(m.id)) self.protocol.suspect(now_, m.id, "it did not come");
      }
      ++self.attempt;
      stop_session(self);
    });
  }

  // ---- faults ----
  void crash(member_id id) {
    auto* const victim = find(id);
    if (victim == nullptr) return;
    victim->alive = false;
    tell(std::to_string(id) + " ends at step " + std::to_string(victim->step));
    for (const auto& entry : processes_) {
      const auto other = entry.first;
      const auto* const its = entry.second.get();
      if (!its->alive) continue;
      if (its->host == victim->host) {  // by its pidfd
        after(draw(0, 2), other, [this, other, id] { find(other)->protocol.prove_dead(now_, id); });
      } else if (reaches(victim->host, its->host) && its->generation != 0 && its->group.rank_of(id)) {
        after(draw(0, 2), other,
              [this, other, id] { find(other)->protocol.disconnected(now_, id, "its connection ended"); });
      }
    }
  }
  // The connection of two that live, which both of them see, or one first.
  void reset(member_id one, member_id other) {
    if (one == 0 || one == other || find(one)->host == find(other)->host) return;
    tell("the connection of " + std::to_string(one) + " and " + std::to_string(other) + " breaks");
    const bool both = chance(0.7);
    for (const auto& [sees, of] : {std::pair(one, other), std::pair(other, one)}) {
      if (sees == other && !both) break;
      after(draw(0, 2), sees, [this, sees = sees, of = of] {
        auto* const its = find(sees);
        if (its->generation != 0 && its->group.rank_of(of)) its->protocol.disconnected(now_, of, "it was reset");
      });
    }
  }
  member_id anybody() {
    std::vector<member_id> living;
    for (const auto& [id, its] : processes_) {
      if (its->alive) living.push_back(id);
    }
    return living.empty() ? 0 : living[random_.below(living.size())];
  }
  void plan_faults() {
    const auto count = 1 + random_.below(static_cast<std::uint64_t>(world_.faults));
    for (std::uint64_t i = 0; i < count; ++i) {
      // Many at nearly the same time: what matters is what happens during a recovery.
      const auto when = time{} + (i > 0 && chance(0.5) ? last_fault_ + draw(0, 60) : draw(100, 3000));
      last_fault_ = std::chrono::duration_cast<microseconds>(when.time_since_epoch());
      at(when, 0, [this] { one_fault(); });
    }
    at(time{} + milliseconds(3500), 0, [this] {
      for (auto& cut : groups_) cut = 0;
      cut_from_store_ = 0;
    });
  }
  // What happens while a new group comes together and copies its state is where the protocol is at its weakest.
  void plan_echo() {
    if (echoes_ >= world_.echoes || now_ > time{} + milliseconds(3400) || record_.state_sources.empty() || !chance(0.4))
      return;
    ++echoes_;
    const auto victim = record_.state_sources[random_.below(record_.state_sources.size())];
    const auto kind = random_.below(3);
    at(now_ + draw(0, 60), 0, [this, victim, kind] {
      auto* const one = find(victim);
      if (one == nullptr) return;
      if (kind == 0 && world_.crashes) {
        crash(victim);
      } else if (kind == 1 && world_.pauses) {
        one->paused_until = now_ + draw(20, 1500);
        tell(std::to_string(victim) + " stands still");
      } else if (kind == 2 && world_.partitions) {
        isolate(one->host);
      }
    });
  }
  // No member of that host is heard by the others, or none hears and is heard.
  void isolate(std::uint64_t host) {
    tell("host " + std::to_string(host) + " is cut from all others");
    const auto both = chance(0.7);
    const auto bit = std::uint64_t{1} << host;
    groups_[host] |= ~bit;
    for (auto& others : groups_) others |= both ? bit : 0;
    groups_[host] &= ~bit;
    after_cut(draw(50, 1500), [this, host, bit] {
      groups_[host] = 0;
      for (auto& others : groups_) others &= ~bit;
    });
  }
  void one_fault() {
    if (world_.resets) return reset(anybody(), anybody());
    const auto kind = random_.below(7);
    const auto host = random_.below(static_cast<std::uint64_t>(world_.hosts));
    const auto other = random_.below(static_cast<std::uint64_t>(world_.hosts));
    if (kind <= 1 && world_.crashes) {
      for (auto n = 1 + random_.below(2); n > 0; --n) crash(anybody());
    } else if (kind == 2 && world_.pauses) {
      if (auto* const one = find(anybody())) {
        one->paused_until = now_ + draw(20, 1500);
        tell(std::to_string(one->id) + " stands still");
      }
    } else if (kind == 3 && world_.partitions && host != other) {
      tell("hosts " + std::to_string(host) + " and " + std::to_string(other) + " are cut from each other");
      groups_[host] |= std::uint64_t{1} << other;  // one way
      if (chance(0.7)) groups_[other] |= std::uint64_t{1} << host;
      after_cut(draw(50, 1500), [this, host, other] {
        groups_[host] &= ~(std::uint64_t{1} << other);
        groups_[other] &= ~(std::uint64_t{1} << host);
      });
    } else if (kind == 4 && world_.store_trouble) {
      tell("host " + std::to_string(host) + " is cut from the store");
      cut_from_store_ |= std::uint64_t{1} << host;
      after_cut(draw(50, 1500), [this, host] { cut_from_store_ &= ~(std::uint64_t{1} << host); });
    } else if (kind == 5 && world_.joins) {
      start_process(100, now_);
    } else if (kind == 6 && world_.leaves) {
      const auto id = anybody();
      if (id != 0) at(now_, id, [this, id] { ledger_.leaves(id), find(id)->protocol.leave(now_); });
    } else if (world_.crashes) {
      crash(anybody());
    }
  }
  void after_cut(microseconds delay, std::function<void()> heal) { at(now_ + delay, 0, std::move(heal)); }

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
  microseconds last_fault_{0};
  int echoes_ = 0;
  std::uint64_t version_ = 0;
  elastic::generation_record record_;
  ledger ledger_{processes_, record_};
  std::map<std::pair<member_id, std::uint64_t>, std::set<member_id>> early_;
  std::map<std::tuple<member_id, std::uint64_t, std::uint64_t>, std::set<member_id>> parts_;
};

}  // namespace simulation
