// What a server makes of the map of ranges: its places in their chains, and what it wants changed.
#include "server.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace muster::inline v0::ps {

void server::learn(const shard_map& map, clock::time_point now) {
  swapping_ = false;
  if (map.version <= map_.version || map.ranges.size() != ranges_.size()) return;
  map_ = map;
  fenced_ = !map_.has_server(self_);
  std::erase_if(dead_, [&](const member& who) { return !map_.has_server(who) && !map_.has_worker(who); });
  std::erase_if(suspects_, [&](const member& who) { return !map_.has_server(who) && !map_.has_worker(who); });
  std::erase_if(doubts_, [&](const auto& one) { return !map_.has_server(one.first) && !map_.has_worker(one.first); });
  clocks_.learn(map_);
  for (const auto& one : map_.servers) heard_.expect(one.who, now);
  for (const auto& who : map_.workers) heard_.expect(who, now);
  for (range_id id = 0; id < ranges_.size(); ++id) take_place(id, ranges_[id], now);
  clocks_moved(now);
}

// What this server is in the chain of a range from now on.
void server::take_place(range_id id, held_range& range, clock::time_point now) {
  const shard_range& entry = map_.ranges[id];
  if (entry.epoch == range.epoch && !fenced_) return;
  const bool holds = !fenced_ && entry.holds(self_.at);
  const bool learns = !fenced_ && entry.learner == self_.at;
  // A learner's log is the beginning of what the chain has, whatever happened meanwhile. That of one who left the chain
  // need not be.
  if ((!holds && !learns) || (learns && range.as == role::holder)) {
    if (range.as != role::none || range.has_state) values_.reset(id);
    range = {};
  }
  range.epoch = entry.epoch;
  if (!holds && !learns) return;
  range.as = holds ? role::holder : role::learner;
  range.stopped = false;
  range.behind_is_learner = range.behind_counts = range.behind_known = false;
  range.behind = range.before = nobody;
  range.behind_has = range.sent = 0;
  range.waiting.clear();
  if (holds) {
    const auto at = std::find(entry.chain.begin(), entry.chain.end(), self_.at);
    if (at != entry.chain.begin()) range.before = *(at - 1);
    if (at + 1 != entry.chain.end()) {
      range.behind = *(at + 1);
    } else if (entry.learner != nobody) {
      range.behind = entry.learner;
      range.behind_is_learner = true;
    }
  } else if (!entry.chain.empty()) {
    range.before = entry.chain.back();
  }
  if (range.behind == nobody) {
    range.kept.clear();
    range.kept_bytes = 0;
  }
  if (range.is_head()) {  // what is not acknowledged yet is when the chain, as it is now, has it
    for (place worker = 0; worker < range.workers.size(); ++worker) {
      const auto& its = range.workers[worker];
      if (its.applied > its.committed) range.waiting.push_back({range.applied, {worker, its.incarnation}, its.applied});
    }
    commit(id, range, range.committed);  // perhaps it has
  }
  settle(id, range);
  if (range.before != nobody && range.has_state) {
    range.to_acknowledge = true;
    acknowledge_.emplace_back(id, nobody);
  }
  if (range.behind != nobody) offer(id, range, now);
}

std::string server::describe(range_id id) const {
  const auto& range = ranges_[id];
  constexpr const char* roles[] = {"nothing", "holder", "learner"};
  std::string text = roles[static_cast<int>(range.as)];
  text += " in epoch " + std::to_string(range.epoch) + (range.has_state ? "" : " without values") +
          (range.stopped ? " that has stopped" : "") + ", " + std::to_string(range.applied) + " entries, " +
          std::to_string(range.committed) + " for good";
  if (range.behind == nobody) return text;
  return text + ", " + std::to_string(range.kept.size()) + " kept for server " + std::to_string(range.behind) +
         (range.behind_known ? ", which has " + std::to_string(range.behind_has) : ", which is not known") +
         (range.behind_counts ? " and counts" : "");
}

void server::suspect(const member& who, bool proven) {
  if (!map_.has_server(who) && !map_.has_worker(who)) return;
  (proven ? dead_ : suspects_).insert(who);
}

void server::doubt(const member& who, clock::time_point now) {
  if (map_.has_server(who) || map_.has_worker(who)) doubts_[who] = now;
}

bool server::gives_up_suspects(clock::time_point now) {
  auto missed = suspects_;
  for (const auto& [who, since] : doubts_) {
    if (heard_.last(who) <= since) missed.insert(who);
  }
  const bool more = !std::includes(missed_then_.begin(), missed_then_.end(), missed.begin(), missed.end());
  if (more) suspected_at_ = now;
  const auto others = map_.servers.size() - 1 + map_.workers.size();
  const bool most = 2 * missed.size() > others;
  missed_then_ = std::move(missed);
  const bool was_away = suspected_at_ - back_at_ < settings_.silence;
  const auto more_time = most || was_away ? settings_.silence : clock::duration{0};
  return !suspects_.empty() && now - suspected_at_ >= settings_.retry + more_time;
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
  if (!dead_.empty() || gives_up) {
    const std::vector<member> dead(dead_.begin(), dead_.end());
    std::vector<member> suspects;
    if (gives_up) suspects.assign(suspects_.begin(), suspects_.end());
    take(without_servers(next, dead, suspects));
    for (const auto& who : dead) take(without_worker(next, who));
    for (const auto& who : suspects) take(without_worker(next, who));
  }
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.as != role::holder || next.ranges[id] != map_.ranges[id]) continue;
    const shard_range& entry = map_.ranges[id];
    if (range.behind_is_learner && range.behind_counts && range.behind_has >= range.committed)
      take(with_learner_joined(next, id));
    if (range.is_head() && entry.leaver != nobody && entry.learner == nobody && entry.chain.size() > 1) {
      range.stopped = range.stopped || entry.leaver == self_.at;  // nobody reads here what others have gone beyond
      take(without_leaver(next, id));
    }
  }
  const auto plans = std::find_if(next.servers.begin(), next.servers.end(),
                                  [&](const server_entry& one) { return !suspects_.contains(one.who); });
  if (plans != next.servers.end() && plans->who == self_) take(rebalanced(next, settings_.moves_at_once));
  if (!changed) return;
  swapping_ = true;
  out_.swap(map_.version, next);
}

}  // namespace muster::inline v0::ps
