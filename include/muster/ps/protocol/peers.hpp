// The other servers and workers of a job, as a server or worker sees them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include <muster/core/clock.hpp>

#include <muster/ps/protocol/shard_map.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// A server or worker in the map. The clock of a peer is 0 until its first message arrives, so that the slowest clock
/// is never overestimated.
struct peer {
  bool is_worker = false;
  bool dead = false;         ///< the peer has ended, by proof, or has left
  bool suspect = false;      ///< no message arrived for too long, or the connection ended
  bool was_missing = false;  ///< value of "suspect or disconnected" at the last check
  bool has_left = false;     ///< a worker: has sent its farewell; a server, in a worker's table: has acknowledged that
                             ///< worker's farewell
  std::uint64_t clock = 0;   ///< a worker's clock
  clock::time_point last_received{};    ///< time of the last message, or when the first message was first expected
  clock::time_point disconnected_at{};  ///< when the connection broke and reconnection began
};

/// The peers of a process. Not thread safe. O(log n) for each frame.
struct peer_table {
  std::map<member, peer> all;
  clock::time_point last_tick{};
  clock::duration usual_gap{};  ///< moving average of the time between two ticks

  /// Makes the table contain exactly the servers and workers of the map. Fenced peers are removed.
  void apply_map(const shard_map& map, clock::time_point now) {
    for (const auto& entry : map.servers) all.try_emplace(entry.node, peer{.last_received = now});
    for (const auto& node : map.workers) all.try_emplace(node, peer{.is_worker = true, .last_received = now});
    std::erase_if(all, [&](const auto& entry) { return !map.has_server(entry.first) && !map.has_worker(entry.first); });
  }
  /// Notes that time passes. Returns true if this process was not scheduled for a quarter of `silence`. The
  /// process could not receive messages meanwhile, so the time of the last message is reset for all peers.
  bool tick(clock::time_point now, clock::duration silence) {
    const bool was_away = now - last_tick > silence / 4;
    if (last_tick != clock::time_point{}) usual_gap += (now - last_tick - usual_gap) / 16;
    if (was_away) {
      for (auto& [node, known_peer] : all) known_peer.last_received = now;
    }
    return std::exchange(last_tick, now) != clock::time_point{} && was_away;
  }
  /// Returns how long peers may be silent. The time is longer if this process often waits for a processor, because then
  /// the peers probably wait too.
  [[nodiscard]] clock::duration patience(clock::duration silence) const noexcept {
    return std::max(silence, 16 * usual_gap);
  }
  /// Returns the interval between two heartbeats to every peer. A process that waits for a processor sends fewer, since
  /// the heartbeats of n processes wake n * n times, and then take the processors that the work needs. At least four
  /// heartbeats arrive within the `patience` of a peer that waits as long.
  [[nodiscard]] clock::duration heartbeat_interval(clock::duration retry) const noexcept {
    return std::max(retry, 4 * usual_gap);
  }
  /// Returns null for a node that is not in the map.
  [[nodiscard]] const peer* find(const member& node) const noexcept {
    const auto found = all.find(node);
    return found == all.end() ? nullptr : &found->second;
  }
  [[nodiscard]] peer* find(const member& node) noexcept { return const_cast<peer*>(std::as_const(*this).find(node)); }
};

}}}  // namespace muster::v0::ps
