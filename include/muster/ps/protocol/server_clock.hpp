// A server and time: workers' clocks, the end of the job, and silent peers.
#pragma once

#include <muster/ps/protocol/server_protocol.hpp>

#include <algorithm>
#include <optional>

namespace muster { inline namespace v0 { namespace ps {

inline bool server::is_done() const noexcept {
  return std::ranges::all_of(peers_.all,
                             [](const auto& entry) { return !entry.second.is_worker || entry.second.has_left; });
}

inline bool server::has_left(const member& worker) const noexcept {
  const auto* const known_peer = peers_.find(worker);
  return known_peer != nullptr && known_peer->has_left;
}

// Recomputes the slowest worker's clock. Bulk: applies the sums of clocks to which no worker adds any more.
inline void server::on_clocks_changed(clock::time_point now) {
  std::optional<std::uint64_t> slowest;
  for (const auto& [node, known_peer] : peers_.all) {
    if (!known_peer.is_worker) continue;
    slowest = std::min(slowest.value_or(known_peer.clock), known_peer.clock);
    fastest_ = std::max(fastest_, known_peer.clock);
  }
  slowest_ = slowest.value_or(fastest_);  // without workers no pull waits
  if (settings_.model.type != consistency::kind::bulk) return;
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    while (range.serves() && range.folded < slowest_) {
      const message sum{.clock = range.folded, .scale = range.scale.value_or(1.0f)};
      append(id, range, {.type = log_entry::kind::fold, .push = sum}, now);
    }
  }
}

inline void server::end_open_sums(clock::time_point now) {
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (!range.serves() || !range.scale) continue;
    const message sum{.clock = range.folded, .scale = *range.scale};
    append(id, range, {.type = log_entry::kind::fold, .push = sum}, now);
  }
}

// Returns the leases of workers that are not in the map any more, so that other workers receive them.
inline void server::return_leases(clock::time_point now) {
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (!range.serves()) continue;
    for (const auto& node : values_.workers_with_parts(id)) {
      if (!map_.has_worker(node)) append(id, range, {.type = log_entry::kind::worker_left, .sender = node}, now);
    }
  }
}

// Marks the processes that have been silent for too long as suspects, and sends this server's heartbeat when it is due.
inline void server::suspect_silent_peers(clock::time_point now) {
  if (peers_.tick(now, settings_.detection_silence)) resumed_at_ = now;
  const auto server_silence = std::max(settings_.detection_silence, settings_.least_server_silence);
  for (auto& [node, known_peer] : peers_.all) {
    if (node != self_ && now - known_peer.last_received >
                             peers_.patience(known_peer.is_worker ? settings_.worker_silence : server_silence))
      known_peer.suspect = true;
  }
  if (now - heartbeat_at_ < peers_.heartbeat_interval(settings_.retry)) return;
  heartbeat_at_ = now;
  for (const auto& entry : map_.servers) {
    if (entry.node != self_) outlet_.send(entry.node, {.kind = message_kind::pulse});
  }
}

inline void server::tick(clock::time_point now) {
  if (fenced_) return;
  suspect_silent_peers(now);
  propose_map(now);
  return_leases(now);
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.successor == no_node || !range.has_state || now - range.last_sent < settings_.retry) continue;
    const auto reported_index = range.successor_is_learner ? range.successor_ack : range.committed;
    if (!range.successor_known) {
      offer(id, range, now);
    } else if (range.sent > reported_index) {  // a server that already has the entries acknowledges them again
      range.sent = reported_index;
      send_entries(id, range, now);
    }
  }
}

}}}  // namespace muster::v0::ps
