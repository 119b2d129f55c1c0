// What happens to a simulated job.
#pragma once

#include "../simulation.hpp"

namespace simulation {

inline void run::crash(member_id id) {
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
inline void run::reset(member_id one, member_id other) {
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

inline member_id run::anybody() {
  std::vector<member_id> living;
  for (const auto& [id, its] : processes_) {
    if (its->alive) living.push_back(id);
  }
  return living.empty() ? 0 : living[random_.below(living.size())];
}

inline void run::plan_faults() {
  const auto count = 1 + random_.below(static_cast<std::uint64_t>(world_.faults));
  for (std::uint64_t i = 0; i < count; ++i) {
    // Many at nearly the same time: what matters is what happens during a recovery.
    const auto when = time{} + (i > 0 && chance(0.5) ? last_fault_ + draw(0, 60) : draw(100, 3000));
    last_fault_ = std::chrono::duration_cast<microseconds>(when.time_since_epoch());
    at(when, 0, [this] { one_fault(); });
  }
  at(time{} + milliseconds(3500), 0, [this] { heal_a_quorum(); });
}

// What happens while a new group comes together and copies its state is where the protocol is at its weakest.
inline void run::plan_echo() {
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
      pause(*one, now_ + draw(20, 1500));
    } else if (kind == 2 && world_.partitions) {
      isolate(one->host);
    }
  });
}

// No member of that host is heard by the others, or none hears and is heard.
inline void run::isolate(std::uint64_t host) {
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

inline void run::one_fault() {
  if (world_.resets) return reset(anybody(), anybody());
  const auto kind = random_.below(7);
  const auto host = random_.below(static_cast<std::uint64_t>(world_.hosts));
  const auto other = random_.below(static_cast<std::uint64_t>(world_.hosts));
  if (kind <= 1 && world_.crashes) {
    for (auto n = 1 + random_.below(2); n > 0; --n) crash(anybody());
  } else if (kind == 2 && world_.pauses) {
    if (auto* const one = find(anybody())) pause(*one, now_ + draw(20, 1500));
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

inline void run::after_cut(microseconds delay, std::function<void()> heal) { at(now_ + delay, 0, std::move(heal)); }

}  // namespace simulation
