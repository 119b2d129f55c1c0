// A server and the shard map: the server's roles in the chains, and the changes that it proposes.
#pragma once

#include <muster/ps/protocol/server_protocol.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {

inline void server::apply_map(const shard_map& map, clock::time_point now) {
  swapping_ = false;
  if (map.version <= map_.version || map.ranges.size() != ranges_.size()) return;
  map_ = map;
  fenced_ = !map_.has_server(self_);
  peers_.apply_map(map_, now);
  for (range_id id = 0; id < ranges_.size(); ++id) update_role(id, ranges_[id], now);
  on_clocks_changed(now);
}

// Determines this server's role for a range from the map.
inline void server::update_role(range_id range_number, held_range& range, clock::time_point now) {
  const shard_range& entry = map_.ranges[range_number];
  if (entry.epoch == range.epoch && !fenced_) return;
  const bool holds = !fenced_ && entry.holds(self_.place);
  const bool learns = !fenced_ && entry.learner == self_.place;
  // A learner's log is a prefix of the chain's log, also after changes of the map. The log of a server that left the
  // chain may differ.
  if ((!holds && !learns) || (learns && range.own_role == role::holder)) {
    if (range.own_role != role::none || range.has_state) values_.reset(range_number);
    range = {};
  }
  range.epoch = entry.epoch;
  if (!holds && !learns) return;
  range.own_role = holds ? role::holder : role::learner;
  range.successor_is_learner = range.learner_must_acknowledge = range.successor_known = false;
  range.successor = range.predecessor = no_node;
  range.successor_ack = range.sent = range.copied_up_to = range.copy_bytes = 0;
  range.copy_until = {};
  range.copy_wait = {};
  range.pieces = {};
  range.waiting.clear();
  if (holds) {
    const auto at = std::ranges::find(entry.chain, self_.place);
    if (at != entry.chain.begin()) range.predecessor = *(at - 1);
    if (at + 1 != entry.chain.end()) {
      range.successor = *(at + 1);
    } else if (entry.learner != no_node) {
      range.successor = entry.learner;
      range.successor_is_learner = true;
    }
  } else if (!entry.chain.empty()) {
    range.predecessor = entry.chain.back();
  }
  if (range.successor == no_node) range.drop_retained();
  if (range.is_head()) {  // pushes that are not acknowledged yet are acknowledged when the present chain has them
    for (node_id worker = 0; worker < range.workers.size(); ++worker) {
      const auto& watermark = range.workers[worker];
      if (watermark.applied > watermark.committed)
        range.waiting.push_back({range.applied, {worker, watermark.incarnation}, watermark.applied});
    }
    commit(range_number, range, range.committed);  // all may already be committed
  }
  commit_as_tail(range_number, range);
  if (range.predecessor != no_node && range.has_state) acknowledge_to(range_number, range, no_node);
  if (range.successor != no_node) offer(range_number, range, now);
}

inline void server::suspect(const member& node, bool proven) {
  if (auto* const known_peer = peers_.find(node)) (proven ? known_peer->dead : known_peer->suspect) = true;
}

inline void server::on_disconnect(const member& node, clock::time_point now) {
  if (auto* const known_peer = peers_.find(node)) known_peer->disconnected_at = now;
}

// Returns true if there are suspects, the last was added long enough ago, and this server is not cut off itself.
inline bool server::may_fence_suspects(clock::time_point now) {
  std::size_t present = 0;
  std::size_t missed = 0;
  std::size_t suspects = 0;
  for (auto& [node, known_peer] : peers_.all) {
    if (node == self_) continue;
    const bool misses = known_peer.suspect || (known_peer.disconnected_at != clock::time_point{} &&
                                               known_peer.last_received <= known_peer.disconnected_at);
    if (misses && !known_peer.was_missing) suspected_at_ = now;
    known_peer.was_missing = misses;
    missed += misses ? 1 : 0;
    suspects += known_peer.suspect ? 1 : 0;
    // A computing worker may be silent for long, so its silence is no sign of a network failure.
    present += !misses && now - known_peer.last_received <= peers_.patience(settings_.detection_silence) / 2 ? 1 : 0;
  }
  const bool most = missed > present;
  // This server was cut off, and the other processes return in turn: the last has as much time as the first.
  if (std::exchange(missed_most_, most) && !most) resumed_at_ = suspected_at_ = now;
  const bool was_away = suspected_at_ - resumed_at_ < settings_.detection_silence;
  const auto more_time = most || was_away ? settings_.detection_silence : clock::duration{0};
  return suspects > 0 && now - suspected_at_ >= settings_.retry + more_time;
}

// Proposes the changes of the map for which this server is responsible.
inline void server::propose_map(clock::time_point now) {
  const bool may_fence = may_fence_suspects(now);
  if (swapping_ || fenced_) return;
  shard_map next = map_;
  bool changed = false;
  const auto take = [&](std::optional<shard_map> proposal) {
    if (!proposal) return;
    next = std::move(*proposal);
    changed = true;
  };
  std::vector<member> dead;
  std::vector<member> suspects;
  for (const auto& [node, known_peer] : peers_.all) {
    if (known_peer.dead) dead.push_back(node);
    if (known_peer.suspect && may_fence) suspects.push_back(node);
    if (known_peer.is_worker && (known_peer.dead || (known_peer.suspect && may_fence)))
      take(without_worker(next, node));
  }
  take(without_servers(next, dead, suspects));
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.own_role != role::holder || next.ranges[id] != map_.ranges[id]) continue;
    const shard_range& entry = map_.ranges[id];
    if (range.successor_is_learner && range.learner_must_acknowledge && range.successor_ack >= range.committed)
      take(with_learner_joined(next, id));
    // The workers send the pushes that a leaving head has not acknowledged to the next head.
    if (range.is_head() && entry.leaver != no_node && entry.learner == no_node && entry.chain.size() > 1)
      take(without_leaver(next, id));
  }
  const auto plans =
      std::ranges::find_if(next.servers, [&](const server_entry& entry) { return !peers_.find(entry.node)->suspect; });
  if (plans != next.servers.end() && plans->node == self_) take(rebalanced(next, settings_.moves_at_once));
  if (!changed) return;
  swapping_ = true;
  outlet_.swap(map_.version, next);
}

}}}  // namespace muster::v0::ps
