// The others of a job, as one of its servers or workers knows them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <muster/core/clock.hpp>

#include "shard_map.hpp"

namespace muster { inline namespace v0 { namespace ps {

/// A server or worker that the map names. One that was not heard yet is at clock 0: so what the slowest has reached is
/// never overestimated.
struct peer {
  bool is_worker = false;
  bool dead = false;            ///< there is proof, or it has left
  bool suspect = false;         ///< it was not heard, or its connection ended
  bool missed = false;          ///< it was suspect, or its connection broken, when that was last looked at
  bool said_goodbye = false;    ///< of a worker; of a server: it knows that this worker has left
  std::uint64_t clock = 0;      ///< of a worker
  clock::time_point heard{};    ///< last, or when it was first expected
  clock::time_point doubted{};  ///< when its connection broke, and another was tried
};

/// Not thread safe; O(log n) a frame.
struct peer_table {
  std::map<member, peer> all;
  clock::time_point ticked{};
  clock::duration usual_gap{};  ///< between two ticks, of late

  /// Those of the map, and no others: it forgets those that are fenced.
  void learn(const shard_map& map, clock::time_point now) {
    for (const auto& one : map.servers) all.try_emplace(one.node, peer{.heard = now});
    for (const auto& node : map.workers) all.try_emplace(node, peer{.is_worker = true, .heard = now});
    std::erase_if(all, [&](const auto& one) { return !map.has_server(one.first) && !map.has_worker(one.first); });
  }
  /// Time passes. A process that was itself away for a good part of `silence` heard no other one, which is no fault of
  /// theirs: true then.
  bool tick(clock::time_point now, clock::duration silence) {
    const bool was_away = now - ticked > silence / 4;
    if (ticked != clock::time_point{}) usual_gap += (now - ticked - usual_gap) / 16;
    if (was_away) {
      for (auto& [node, its] : all) its.heard = now;
    }
    return std::exchange(ticked, now) != clock::time_point{} && was_away;
  }
  /// How long others may be silent: longer where this process waits for a processor again and again, for it is not the
  /// only one to do so.
  [[nodiscard]] clock::duration patience(clock::duration silence) const noexcept {
    return std::max(silence, 16 * usual_gap);
  }
  /// Null for one that the map does not name.
  [[nodiscard]] const peer* find(const member& node) const noexcept {
    const auto found = all.find(node);
    return found == all.end() ? nullptr : &found->second;
  }
  [[nodiscard]] peer* find(const member& node) noexcept { return const_cast<peer*>(std::as_const(*this).find(node)); }
};

}}}  // namespace muster::v0::ps
