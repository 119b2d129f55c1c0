#include <muster/ps/server.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include "bytes.hpp"

namespace muster::inline v0::ps {
namespace {

// More pulls do not wait; their workers ask again.
constexpr std::size_t most_parked = 4096;

// In the flags of `copied`: it has no state at all, and needs a copy.
constexpr std::uint8_t has_nothing = 1;

}  // namespace

server::server(member self, const protocol_settings& settings, range_storage& values, server_outlet& out,
               const shard_map& map)
    : self_(self), settings_(settings), values_(values), out_(out), ranges_(map.ranges.size()) {
  // Whoever the map names from the beginning holds a range as it is in the beginning.
  for (range_id id = 0; id < ranges_.size(); ++id) {
    if (map.has_server(self_) && map.ranges[id].holds(self_.at)) ranges_[id].has_state = true;
  }
  learn(map, {});
}

// ---- the map ----

void server::learn(const shard_map& map, clock::time_point now) {
  swapping_ = false;
  if (map.version <= map_.version || map.ranges.size() != ranges_.size()) return;
  map_ = map;
  fenced_ = !map_.has_server(self_);
  std::erase_if(dead_, [&](const member& who) { return !map_.has_server(who) && !map_.has_worker(who); });
  std::erase_if(suspects_, [&](const member& who) { return !map_.has_server(who) && !map_.has_worker(who); });
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

// Wants the map changed as far as it is this server's to say.
void server::govern() {
  if (swapping_ || fenced_) return;
  shard_map next = map_;
  bool changed = false;
  const auto take = [&](std::optional<shard_map> made) {
    if (!made) return;
    next = std::move(*made);
    changed = true;
  };
  if (!dead_.empty() || !suspects_.empty()) {
    const std::vector<member> dead(dead_.begin(), dead_.end());
    const std::vector<member> suspects(suspects_.begin(), suspects_.end());
    take(without_servers(next, dead, suspects));
    for (const auto* some : {&dead, &suspects}) {
      for (const auto& who : *some) take(without_worker(next, who));
    }
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
  if (leaving_) {
    const auto own = std::find_if(next.servers.begin(), next.servers.end(),
                                  [&](const server_entry& one) { return one.who == self_; });
    if (own != next.servers.end() && !own->leaving) {
      own->leaving = true;
      ++next.version;
      changed = true;
    }
  }
  const auto plans = std::find_if(next.servers.begin(), next.servers.end(),
                                  [&](const server_entry& one) { return !suspects_.contains(one.who); });
  if (plans != next.servers.end() && plans->who == self_) take(rebalanced(next, settings_.moves_at_once));
  if (!changed) return;
  swapping_ = true;
  out_.swap(map_.version, next);
}

// ---- frames ----

void server::hear(std::span<const std::byte> frame, clock::time_point now) {
  if (fenced_) return;
  const auto head = decode_head(frame);
  if (!head || (head->to != 0 && head->to != self_.incarnation)) return;
  if (head->map_version > map_.version) out_.look_for_map();
  const bool from_worker = clocks_.has(head->from);
  if (!from_worker && !map_.has_server(head->from)) {
    // Fenced, and told so; or new, and not known here yet.
    if (head->map_version <= map_.version)
      out_.send(head->from, {.what = message_kind::moved, .number = map_.version});
    return;
  }
  heard_.hear(head->from, now);
  if (!suspects_.empty()) suspects_.erase(head->from);
  message said;
  message_reader in(frame.subspan(frame_head_bytes));
  if (from_worker) {
    while (in.next(said)) hear_worker(head->from, said, now);
    if (clocks_.hear(head->from, head->clock)) clocks_moved(now);
  } else {
    while (in.next(said)) hear_server(head->from, said, now);
  }
}

void server::hear_worker(const member& from, const message& said, clock::time_point now) {
  if (said.what == message_kind::pulse) return hear_pulse(from, said, now);
  if (said.range >= ranges_.size()) return;
  auto& range = ranges_[said.range];
  if (!range.serves()) {
    out_.send(from, {.what = message_kind::moved, .range = said.range, .number = map_.version});
    return;
  }
  if (said.what == message_kind::push) return hear_push(from, said, range, now);
  if (said.what == message_kind::pull) return hear_pull(from, said);
}

void server::hear_push(const member& from, const message& said, held_range& range, clock::time_point now) {
  auto& its = seen_of(range, from.at);
  const bool first_of_it = from.incarnation != its.incarnation;
  if (first_of_it && from.incarnation < its.incarnation) return;
  const std::uint64_t expected = first_of_it ? 1 : its.applied + 1;
  if (said.number < expected) return acknowledge_to(said.range, range, from.at);
  if (said.number > expected) {
    out_.send(from, {.what = message_kind::resend, .range = said.range, .number = expected, .clock = range.epoch});
    return;
  }
  if (!std::isfinite(said.scale) || !values_.accepts(said.range, said)) return;
  log_entry entry;
  entry.flags = said.flags;
  entry.offset = said.offset;
  entry.count = said.count;
  entry.from = from;
  entry.sequence = said.number;
  entry.clock = said.clock;
  if (settings_.how.what == consistency::kind::bulk && said.clock < range.folded) entry.what = log_entry::kind::late;
  entry.scale = said.scale;
  entry.payload = said.payload;
  if (settings_.how.old_pushes != consistency::policy::keep)
    entry.weight = settings_.how.weight_of(range.applied - std::min(range.applied, said.version));
  append(said.range, range, entry, now);
}

void server::hear_pull(const member& from, const message& said) {
  if (!values_.accepts(said.range, said)) return;
  if (is_ready(from, said) && out_.has_room(from)) return send_values(from, said);
  const bool known = std::any_of(parked_.begin(), parked_.end(), [&](const parked_pull& one) {
    return one.from == from && one.what.range == said.range && one.what.number == said.number;
  });
  if (known || parked_.size() >= most_parked) return;
  parked_.push_back({from, said, {said.payload.begin(), said.payload.end()}});
}

bool server::is_ready(const member& from, const message& pull) const {
  const auto& range = ranges_[pull.range];
  if (pull.version > 0) {  // with its own pushes up to that one
    if (from.at >= range.workers.size()) return false;
    const auto& its = range.workers[from.at];
    if (its.incarnation != from.incarnation || its.applied < pull.version) return false;
  }
  switch (settings_.how.what) {
    case consistency::kind::asynchronous:
      return true;
    case consistency::kind::bounded:
      return clocks_.slowest() + settings_.how.bound >= pull.clock;
    case consistency::kind::bulk:
      // A former head may have folded what a worker that it did not know has not even sent.
      return range.folded >= pull.clock && clocks_.slowest() >= pull.clock;
  }
  return true;
}

void server::send_values(const member& to, const message& pull) {
  out_.send(to, {.what = message_kind::values,
                    .flags = pull.flags,
                    .range = pull.range,
                    .offset = pull.offset,
                    .count = pull.count,
                    .number = pull.number,
                    .version = ranges_[pull.range].applied,
                    .clock = clocks_.slowest(),
                    .payload = values_.read(pull.range, pull)});
}

void server::retry_parked() {
  std::erase_if(parked_, [&](parked_pull& one) {
    if (!clocks_.has(one.from)) return true;
    if (!ranges_[one.what.range].serves()) {
      out_.send(one.from, {.what = message_kind::moved, .range = one.what.range, .number = map_.version});
      return true;
    }
    if (!is_ready(one.from, one.what) || !out_.has_room(one.from)) return false;
    one.what.payload = one.payload;
    send_values(one.from, one.what);
    return true;
  });
}

void server::hear_pulse(const member& from, const message& said, clock::time_point now) {
  if ((said.flags & says_goodbye) != 0) {
    dead_.insert(from);  // nobody needs to wait for it
    farewells_.insert(from);
    return out_.send(from, {.what = message_kind::welcome, .flags = says_goodbye});
  }
  if ((said.flags & (says_hello | wants_word)) == 0) return;
  const bool joins = (said.flags & says_hello) != 0;
  const auto begins = joins ? clocks_.welcome(from) : clocks_.fastest();
  if (joins) clocks_moved(now);
  out_.send(from, {.what = message_kind::welcome, .number = begins});
}

// ---- the log ----

server::seen& server::seen_of(held_range& range, place worker) {
  if (range.workers.size() <= worker) range.workers.resize(worker + 1);
  return range.workers[worker];
}

// At any server of the chain: the next entry takes effect.
void server::apply(range_id id, held_range& range, const log_entry& entry) {
  ++range.applied;
  if (entry.what == log_entry::kind::fold) {
    range.folded = entry.clock + 1;
    clocks_.reach(range.folded);
    values_.apply(id, entry);
    return;
  }
  auto& its = seen_of(range, entry.from.at);
  if (its.incarnation != entry.from.incarnation) its = {entry.from.incarnation, its.to_acknowledge, 0, 0};
  its.applied = entry.sequence;
  if (entry.weight != 0) values_.apply(id, entry);
}

// At the head, and behind it as entries come: applies, and hands on.
void server::append(range_id id, held_range& range, const log_entry& entry, clock::time_point now) {
  apply(id, range, entry);
  if (range.behind == nobody) {  // nobody waits for anybody: the common case, and without a queue
    range.committed = range.applied;
    if (range.before == nobody && entry.what != log_entry::kind::fold) {
      auto& its = range.workers[entry.from.at];
      its.committed = its.applied;
      acknowledge_to(id, range, entry.from.at);
    }
    return;
  }
  // Whoever is behind may have to be told again, so the entry is kept: one allocation, which is the price of a copy.
  kept_entry kept{range.applied, std::vector<std::byte>(log_entry_head_bytes + entry.payload.size())};
  encode_head(entry, std::span(kept.body).first<log_entry_head_bytes>());
  std::copy(entry.payload.begin(), entry.payload.end(), kept.body.begin() + log_entry_head_bytes);
  range.kept_bytes += kept.body.size();
  range.kept.push_back(std::move(kept));
  if (range.is_head() && entry.what != log_entry::kind::fold)
    range.waiting.push_back({range.applied, entry.from, entry.sequence});
  if (range.behind_is_learner && !range.behind_counts && range.kept_bytes > settings_.window) {
    range.kept.clear();  // it will be given a copy
    range.kept_bytes = 0;
  }
  settle(id, range);
  send_entries(id, range, now);
}

// The last of the chain knows by itself what all have.
void server::settle(range_id id, held_range& range) {
  if (range.as != role::holder || !range.has_state) return;
  if (range.behind == nobody || (range.behind_is_learner && !range.behind_counts)) {
    commit(id, range, range.applied);
  } else if (range.behind_is_learner) {
    commit(id, range, std::min(range.applied, range.behind_has));
  }
}

void server::commit(range_id id, held_range& range, std::uint64_t up_to) {
  range.committed = std::max(range.committed, up_to);
  while (!range.waiting.empty() && range.waiting.front().index <= range.committed) {
    const auto& done = range.waiting.front();
    auto& its = range.workers[done.from.at];
    if (its.incarnation == done.from.incarnation) {
      its.committed = std::max(its.committed, done.sequence);
      acknowledge_to(id, range, done.from.at);
    }
    range.waiting.pop_front();
  }
  const auto has = range.behind_is_learner ? range.behind_has : range.committed;
  while (!range.kept.empty() && range.kept.front().index <= has) {
    range.kept_bytes -= range.kept.front().body.size();
    range.kept.pop_front();
  }
  if (range.before != nobody && !range.to_acknowledge) {
    range.to_acknowledge = true;
    acknowledge_.emplace_back(id, nobody);
  }
}

void server::acknowledge_to(range_id id, held_range& range, place worker) {
  auto& its = range.workers[worker];
  if (its.to_acknowledge) return;
  its.to_acknowledge = true;
  acknowledge_.emplace_back(id, worker);
}

void server::flush() {
  if (!parked_.empty()) retry_parked();
  for (const auto& [id, to] : acknowledge_) {
    auto& range = ranges_[id];
    if (to == nobody) {
      if (!std::exchange(range.to_acknowledge, false) || range.before == nobody || !range.has_state) continue;
      const bool learns = range.as == role::learner;
      tell_server(range.before, {.what = learns ? message_kind::copied : message_kind::entry_ack,
                               .range = id,
                               .number = learns ? range.applied : range.committed,
                               .clock = range.epoch});
    } else if (to < range.workers.size() && std::exchange(range.workers[to].to_acknowledge, false) && range.is_head()) {
      const auto& its = range.workers[to];
      if (!clocks_.has({to, its.incarnation})) continue;
      out_.send({to, its.incarnation}, {.what = message_kind::ack,
                     .range = id,
                     .number = its.committed,
                     .version = range.applied,
                     .clock = range.epoch});
    }
  }
  acknowledge_.clear();
}

// ---- the chain ----

void server::hear_server(const member& from, const message& said, clock::time_point now) {
  if (said.what == message_kind::moved) {
    if (said.number > map_.version) out_.look_for_map();
    return;
  }
  if (said.what < message_kind::entry || said.range >= ranges_.size()) return;
  auto& range = ranges_[said.range];
  if (said.epoch() > range.epoch) return out_.look_for_map();
  if (said.epoch() < range.epoch) {
    out_.send(from, {.what = message_kind::moved, .range = said.range, .number = map_.version});
    return;
  }
  switch (said.what) {
    case message_kind::entry:
      return hear_entry(from.at, said, range, now);
    case message_kind::copy:
      return hear_copy(from.at, said, range);
    case message_kind::offer:
      if (from.at != range.before) return;
      out_.send(from, {.what = message_kind::copied,
                          .flags = range.has_state ? std::uint8_t{0} : has_nothing,
                          .range = said.range,
                          .number = range.applied,
                          .clock = range.epoch});
      return;
    case message_kind::copied:
      if (from.at == range.behind && said.number <= range.applied) hear_copied(said, range, now);
      return;
    case message_kind::entry_ack:
      if (from.at != range.behind || range.behind_is_learner || said.number > range.applied) return;
      range.behind_has = std::max(range.behind_has, said.number);
      return commit(said.range, range, said.number);
    default:
      return;
  }
}

void server::hear_entry(place from, const message& said, held_range& range, clock::time_point now) {
  if (from != range.before || !range.has_state) return;
  if (said.number == range.applied + 1) {  // one that came before is acknowledged again; so is what there is before one
                                           // that is missing
    const auto entry = decode_entry(said.payload);
    if (!entry) return;
    append(said.range, range, *entry, now);
  }
  if (std::exchange(range.to_acknowledge, true)) return;
  acknowledge_.emplace_back(said.range, nobody);
}

// How far the one behind is: the answer to an offer, or a learner's acknowledgement.
void server::hear_copied(const message& said, held_range& range, clock::time_point now) {
  const range_id id = said.range;
  range.behind_has = std::max(range.behind_has, said.number);
  const bool follows =
      range.behind_has == range.applied || (!range.kept.empty() && range.kept.front().index <= range.behind_has + 1);
  const bool empty = (said.flags & has_nothing) != 0 && !range.behind_known;
  if (empty || !follows) {
    if (range.behind_is_learner) send_copy(id, range, now);
    return;
  }
  if (!std::exchange(range.behind_known, true)) range.sent = range.behind_has;
  if (range.behind_is_learner) {
    range.behind_counts = true;
    commit(id, range, std::min(range.applied, range.behind_has));
  }
  send_entries(id, range, now);
}

// A neighbour in a chain of this map.
void server::tell_server(place to, const message& what) {
  if (const auto* const entry = map_.server(to)) out_.send(entry->who, what);
}

void server::offer(range_id id, held_range& range, clock::time_point now) {
  range.said = now;
  tell_server(range.behind, {.what = message_kind::offer, .range = id, .clock = range.epoch});
}

void server::send_entries(range_id id, held_range& range, clock::time_point now) {
  if (!range.behind_known || range.kept.empty()) return;
  const auto first = range.kept.front().index;
  for (auto next = std::max(range.sent + 1, first); next < first + range.kept.size(); ++next) {
    tell_server(range.behind, {.what = message_kind::entry,
                             .range = id,
                             .number = next,
                             .clock = range.epoch,
                             .payload = range.kept[next - first].body});
    range.sent = next;
    range.said = now;
  }
}

// The values, and with them the table of the pushes that they contain.
void server::send_copy(range_id id, held_range& range, clock::time_point now) {
  detail::byte_writer head;
  head.add(range.folded);
  head.add(std::uint64_t{range.workers.size()});
  for (const auto& its : range.workers) {
    head.add(its.incarnation);
    head.add(its.applied);
  }
  std::string all = head.take();
  values_.save(id, all);
  range.kept.clear();
  range.kept_bytes = 0;
  range.said = now;
  tell_server(range.behind, {.what = message_kind::copy,
                           .range = id,
                           .number = range.applied,
                           .clock = range.epoch,
                           .payload = std::as_bytes(std::span(all))});
}

void server::hear_copy(place from, const message& said, held_range& range) {
  if (from != range.before || range.as != role::learner) return;
  if (!range.has_state || said.number > range.applied) {
    detail::byte_reader in(said.payload);
    const auto folded = in.number<std::uint64_t>();
    std::vector<seen> workers(in.count(sizeof(std::uint32_t) + sizeof(std::uint64_t), most_places));
    for (auto& its : workers) {
      its.incarnation = in.number<std::uint32_t>();
      its.applied = in.number<std::uint64_t>();
    }
    if (!in.good() || !values_.load(said.range, in.rest())) return;
    range.has_state = true;
    range.folded = folded;
    clocks_.reach(folded);
    range.workers = std::move(workers);
    range.applied = range.committed = said.number;
  }
  if (std::exchange(range.to_acknowledge, true)) return;
  acknowledge_.emplace_back(said.range, nobody);
}

// ---- time ----

void server::clocks_moved(clock::time_point now) {
  if (settings_.how.what == consistency::kind::bulk) fold_due(now);
}

void server::fold_due(clock::time_point now) {
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    while (range.serves() && range.folded < clocks_.slowest()) {
      log_entry entry;
      entry.what = log_entry::kind::fold;
      entry.clock = range.folded;
      append(id, range, entry, now);
    }
  }
}

void server::look_for_the_silent(clock::time_point now) {
  heard_.tick(now, settings_.silence);
  for (const auto& one : map_.servers) {
    if (one.who != self_ && heard_.is_silent(one.who, now, settings_.silence)) suspects_.insert(one.who);
  }
  for (const auto& who : map_.workers) {
    if (heard_.is_silent(who, now, settings_.worker_silence)) suspects_.insert(who);
  }
  if (now - pulsed_ < settings_.retry) return;
  pulsed_ = now;
  for (const auto& one : map_.servers) {
    if (one.who != self_) out_.send(one.who, {.what = message_kind::pulse});
  }
}

void server::tick(clock::time_point now) {
  if (fenced_) return;
  look_for_the_silent(now);
  govern();
  for (range_id id = 0; id < ranges_.size(); ++id) {
    auto& range = ranges_[id];
    if (range.behind == nobody || !range.has_state || now - range.said < settings_.retry) continue;
    const auto has = range.behind_is_learner ? range.behind_has : range.committed;
    if (!range.behind_known) {
      offer(id, range, now);
    } else if (range.sent > has) {  // whoever has them already acknowledges again
      range.sent = has;
      send_entries(id, range, now);
    }
  }
}

}  // namespace muster::inline v0::ps
