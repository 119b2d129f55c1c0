// What a server makes of the map of ranges: its places in their chains, and what it wants changed.
#include "server.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {

void server::learn(const shard_map& map, clock::time_point now) {
  swapping_ = false;
  if (map.version <= map_.version || map.ranges.size() != ranges_.size()) return;
  map_ = map;
  fenced_ = !map_.has_server(self_);
  peers_.learn(map_, now);
  for (range_id id = 0; id < ranges_.size(); ++id) take_place(id, ranges_[id], now);
  clocks_moved(now);
}

// What this server is in the chain of a range from now on.
void server::take_place(range_id id, held_range& range, clock::time_point now) {
  const shard_range& entry = map_.ranges[id];
  if (entry.epoch == range.epoch && !fenced_) return;
  const bool holds = !fenced_ && entry.holds(self_.at);
  const bool learns = !fenced_ && entry.learner == self_.at;
  // A learner's log is the beginning of what the chain has, whatever happened meanwhile. That of one that left the
  // chain need not be.
  if ((!holds && !learns) || (learns && range.as == role::holder)) {
    if (range.as != role::none || range.has_state) values_.reset(id);
    range = {};
  }
  range.epoch = entry.epoch;
  if (!holds && !learns) return;
  range.as = holds ? role::holder : role::learner;
  range.successor_is_learner = range.successor_counts = range.behind_known = false;
  range.successor = range.predecessor = no_node;
  range.behind_has = range.sent = range.copied = range.copy_bytes = 0;
  range.copy_until = {};
  range.copy_wait = {};
  range.pieces = {};
  range.waiting.clear();
  if (holds) {
    const auto at = std::ranges::find(entry.chain, self_.at);
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
  if (range.successor == no_node) range.drop_kept();
  if (range.is_head()) {  // what is not acknowledged yet is when the chain, as it is now, has it
    for (node_id worker = 0; worker < range.workers.size(); ++worker) {
      const auto& its = range.workers[worker];
      if (its.applied > its.committed) range.waiting.push_back({range.applied, {worker, its.incarnation}, its.applied});
    }
    commit(id, range, range.committed);  // perhaps it has
  }
  settle(id, range);
  if (range.predecessor != no_node && range.has_state) acknowledge_to(id, range, no_node);
  if (range.successor != no_node) offer(id, range, now);
}

void server::suspect(const member& node, bool proven) {
  if (auto* const its = peers_.find(node)) (proven ? its->dead : its->suspect) = true;
}

void server::doubt(const member& node, clock::time_point now) {
  if (auto* const its = peers_.find(node)) its->doubted = now;
}

bool server::gives_up_suspects(clock::time_point now) {
  std::size_t present = 0;
  std::size_t missed = 0;
  std::size_t suspects = 0;
  for (auto& [node, its] : peers_.all) {
    if (node == self_) continue;
    const bool misses = its.suspect || (its.doubted != clock::time_point{} && its.heard <= its.doubted);
    if (misses && !its.missed) suspected_at_ = now;
    its.missed = misses;
    missed += misses ? 1 : 0;
    suspects += its.suspect ? 1 : 0;
    // A worker that computes for long says nothing of the network.
    present += !misses && now - its.heard <= settings_.silence / 2 ? 1 : 0;
  }
  const bool most = missed > present;
  // It was itself cut off, and they come back one by one: the last of them has as much time as the first.
  if (std::exchange(missed_most_, most) && !most) back_at_ = suspected_at_ = now;
  const bool was_away = suspected_at_ - back_at_ < settings_.silence;
  const auto more_time = most || was_away ? settings_.silence : clock::duration{0};
  return suspects > 0 && now - suspected_at_ >= settings_.retry + more_time;
}

// Wants the map changed as far as it is this server's to say.
void server::govern(clock::time_point now) {
  const bool gives_up = gives_up_suspects(now);
  if (swapping_ || fenced_) return;
  shard_map next = map_;
  bool changed = false;
  const auto take = [&](std::optional<shard_map> made) {
    if (!made) return;
    next = std::move(*made);
    changed = true;
  };
  std::vector<member> dead;
  std::vector<member> suspects;
  for (const auto& [node, its] : peers_.all) {
    if (its.dead) dead.push_back(node);
    if (its.suspect && gives_up) suspects.push_back(node);
    if (its.is_worker && (its.dead || (its.suspect && gives_up))) take(without_worker(next, node));
  }
  take(without_servers(next, dead, suspects));
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.as != role::holder || next.ranges[id] != map_.ranges[id]) continue;
    const shard_range& entry = map_.ranges[id];
    if (range.successor_is_learner && range.successor_counts && range.behind_has >= range.committed)
      take(with_learner_joined(next, id));
    // What a head that leaves has not acknowledged then its workers send to the next.
    if (range.is_head() && entry.leaver != no_node && entry.learner == no_node && entry.chain.size() > 1)
      take(without_leaver(next, id));
  }
  const auto plans =
      std::ranges::find_if(next.servers, [&](const server_entry& one) { return !peers_.find(one.node)->suspect; });
  if (plans != next.servers.end() && plans->node == self_) take(rebalanced(next, settings_.moves_at_once));
  if (!changed) return;
  swapping_ = true;
  out_.swap(map_.version, next);
}

}}}  // namespace muster::v0::ps
