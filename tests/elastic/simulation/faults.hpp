// The faults of a simulated job.
#pragma once

#include "../simulation.hpp"

namespace simulation {

inline void run::crash(member_id id) {
  auto* const victim = find(id);
  if (victim == nullptr) return;
  victim->alive = false;
  trace(std::to_string(id) + " ends at step " + std::to_string(victim->step));
  for (const auto& entry : processes_) {
    const auto other = entry.first;
    const auto* const neighbor = entry.second.get();
    if (!neighbor->alive) continue;
    if (neighbor->host == victim->host) {  // proof by its pidfd
      after(draw(0, 2), other, [this, other, id] { find(other)->protocol.prove_dead(now_, id); });
    } else if (reaches(victim->host, neighbor->host) && neighbor->generation != 0 && neighbor->group.rank_of(id)) {
      after(draw(0, 2), other,
            [this, other, id] { find(other)->protocol.disconnected(now_, id, "its connection ended"); });
    }
  }
}

// Breaks the connection of two live members. Both notice it, or only the first.
inline void run::reset(member_id first, member_id second) {
  if (first == 0 || first == second || find(first)->host == find(second)->host) return;
  trace("the connection of " + std::to_string(first) + " and " + std::to_string(second) + " breaks");
  const bool both = chance(0.7);
  for (const auto& [observer_id, peer_id] : {std::pair(first, second), std::pair(second, first)}) {
    if (observer_id == second && !both) break;
    after(draw(0, 2), observer_id, [this, observer_id = observer_id, peer_id = peer_id] {
      auto* const observer = find(observer_id);
      if (observer->generation != 0 && observer->group.rank_of(peer_id))
        observer->protocol.disconnected(now_, peer_id, "it was reset");
    });
  }
}

inline member_id run::anybody() {
  std::vector<member_id> living;
  for (const auto& [id, candidate] : processes_) {
    if (candidate->alive) living.push_back(id);
  }
  return living.empty() ? 0 : living[random_.below(living.size())];
}

inline void run::plan_faults() {
  const auto count = 1 + random_.below(static_cast<std::uint64_t>(world_.faults));
  for (std::uint64_t i = 0; i < count; ++i) {
    // Schedules many faults at nearly the same time, because faults during a recovery matter most.
    const auto when = time{} + (i > 0 && chance(0.5) ? last_fault_ + draw(0, 60) : draw(100, 3000));
    last_fault_ = std::chrono::duration_cast<microseconds>(when.time_since_epoch());
    at(when, 0, [this] { one_fault(); });
  }
  at(time{} + milliseconds(3500), 0, [this] { heal_a_quorum(); });
}

// Schedules a fault while a new group connects and copies its state, where the protocol is most vulnerable.
inline void run::plan_echo() {
  if (echoes_ >= world_.echoes || now_ > time{} + milliseconds(3400) || record_.state_sources.empty() || !chance(0.4))
    return;
  ++echoes_;
  const auto victim = record_.state_sources[random_.below(record_.state_sources.size())];
  const auto kind = random_.below(3);
  at(now_ + draw(0, 60), 0, [this, victim, kind] {
    auto* const peer = find(victim);
    if (peer == nullptr) return;
    if (kind == 0 && world_.crashes) {
      crash(victim);
    } else if (kind == 1 && world_.pauses) {
      pause(*peer, now_ + draw(20, 1500));
    } else if (kind == 2 && world_.partitions) {
      isolate(peer->host);
    }
  });
}

// Isolates a host: its members are not received by the others, or they neither send nor receive.
inline void run::isolate(std::uint64_t host) {
  trace("host " + std::to_string(host) + " is cut from all others");
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
    if (auto* const peer = find(anybody())) pause(*peer, now_ + draw(20, 1500));
  } else if (kind == 3 && world_.partitions && host != other) {
    trace("hosts " + std::to_string(host) + " and " + std::to_string(other) + " are cut from each other");
    groups_[host] |= std::uint64_t{1} << other;  // one direction
    if (chance(0.7)) groups_[other] |= std::uint64_t{1} << host;
    after_cut(draw(50, 1500), [this, host, other] {
      groups_[host] &= ~(std::uint64_t{1} << other);
      groups_[other] &= ~(std::uint64_t{1} << host);
    });
  } else if (kind == 4 && world_.store_trouble) {
    trace("host " + std::to_string(host) + " is cut from the store");
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
