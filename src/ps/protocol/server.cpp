#include "server.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {
namespace {

// More pulls do not wait; their workers ask again.
constexpr std::size_t most_parked = 4096;

}  // namespace

server::server(member self, const protocol_settings& settings, range_storage& values, server_outlet& out,
               const shard_map& map)
    : self_(self), settings_(settings), values_(values), out_(out), ranges_(map.ranges.size()) {
  // A server that the map names from the beginning holds a range as it is in the beginning.
  for (range_id id = 0; id < ranges_.size(); ++id)
    ranges_[id].has_state = map.has_server(self_) && map.ranges[id].holds(self_.at);
  learn(map, {});
}

// ---- frames ----

void server::hear(std::span<const std::byte> frame, clock::time_point now, std::span<const std::byte> apart) {
  const auto head = decode_head(frame);
  if (!head || (head->to != 0 && head->to != self_.incarnation)) return;
  auto* const its = peers_.find(head->from);
  message said;
  message_reader in(frame.subspan(frame_head_bytes), apart);
  if (its == nullptr) {
    bool is_last = false;
    while (in.next(said)) {
      if (said.what != message_kind::pulse) continue;
      if ((said.flags & says_goodbye) != 0) heard_farewell_ = true;
      if ((said.flags & knows_end) != 0) is_last = informed_.insert(head->from.at).second;
    }
    if (is_last) return;
    // Fenced, and told so; or new, and not known here yet.
    if (!fenced_ && head->map_version <= map_.version) out_.send(head->from, {.what = message_kind::fenced});
    return;
  }
  its->heard = now;
  its->suspect = false;
  newest_ = std::max(newest_, head->map_version);
  while (in.next(said)) its->is_worker ? hear_worker(head->from, said, now) : hear_server(head->from, said, now);
  if (!its->is_worker || head->clock <= its->clock) return;
  its->clock = head->clock;
  clocks_moved(now);
}

void server::hear_worker(const member& from, const message& said, clock::time_point now) {
  if (said.what == message_kind::pulse) return hear_pulse(from, said);
  if (said.range >= ranges_.size())
    return refuse(from, said, "the job has " + std::to_string(ranges_.size()) + " ranges");
  auto& range = ranges_[said.range];  // where it is elsewhere, its worker learns that from the map
  if (said.what == message_kind::push && range.serves()) return hear_push(from, said, range, now);
  if (said.what == message_kind::pull && range.is_last()) return hear_pull(from, said);
}

void server::ask_again(range_id id, const held_range& range, const member& worker, std::uint64_t from) {
  out_.send(worker, {.what = message_kind::resend, .range = id, .number = from, .clock = range.epoch});
}

void server::hear_push(const member& from, const message& said, held_range& range, clock::time_point now) {
  auto& its = watermark_of(range, from.at);
  const bool first_of_it = from.incarnation != its.incarnation;
  if (first_of_it && from.incarnation < its.incarnation) return;
  const std::uint64_t expected = first_of_it ? 1 : its.applied + 1;
  if (said.number < expected) return acknowledge_to(said.range, range, from.at);
  if (said.number > expected) {
    if (first_of_it || its.early == 0) ask_again(said.range, range, from, expected);
    return;
  }
  if (said.flags == leases) return hear_claim(from, said, range, now);
  const bool sums = is_summed(said);
  if (sums && said.clock > range.folded) {  // it stays at its worker: here there is one clock's sum and no more
    if (first_of_it) its = {from.incarnation, its.to_acknowledge, its.age};
    its.early = said.clock;
    return;
  }
  if (!std::isfinite(said.scale)) return refuse(from, said, "its scale is " + std::to_string(said.scale));
  if (const auto why = values_.problem_with(said.range, said); !why.empty()) return refuse(from, said, why);
  const bool other_scale = sums && range.scale.value_or(said.scale) != said.scale;
  // A part of a batch that another worker has not finished comes with later ones, perhaps of another scale.
  const bool late = sums && (said.clock < range.folded || (other_scale && said.place != 0));
  const bool again = range.used.has(said.place);
  if (!late && !again && other_scale) {
    return refuse(from, said,
                  "its scale is " + std::to_string(said.scale) + ", and that of the others of clock " +
                      std::to_string(said.clock) + " is " + std::to_string(*range.scale),
                  "their sum is one update, so push all of a clock with one scale");
  }
  log_entry entry{.what = late ? log_entry::kind::late : log_entry::kind::push, .from = from, .push = said};
  const auto age = range.applied - std::min(range.applied, said.version);
  const bool is_gradient = (said.flags & (assigns | restores)) == 0;  // what sets values is of any age
  if (is_gradient && settings_.how.old_pushes != consistency::policy::keep) entry.weight = settings_.how.weight_of(age);
  if (again) entry.weight = 0;
  its.age = static_cast<std::uint32_t>(std::min<std::uint64_t>(age, std::numeric_limits<std::uint32_t>::max()));
  append(said.range, range, entry, now);
}

// How batches are assigned depends on the workers of this server's map: so the log has them.
void server::hear_claim(const member& from, const message& said, held_range& range, clock::time_point now) {
  if (const auto why = values_.problem_with(said.range, said); !why.empty()) return refuse(from, said, why);
  log_entry entry{.from = from, .push = said};
  if (said.payload.empty()) entry.push.payload = std::as_bytes(std::span(map_.workers));
  append(said.range, range, entry, now);
}

// Its worker sends it again until it gets this.
void server::refuse(const member& to, const message& asked, const std::string& why, const char* suggestion) {
  const bool pulls = asked.what == message_kind::pull;
  if (!pulls && asked.what != message_kind::push) return;
  const std::string text = (pulls ? "pull " : "push ") + std::to_string(asked.number) + " of worker " + to_string(to) +
                           (pulls ? " from" : " to") + " range " + std::to_string(asked.range) +
                           " is refused by server " + to_string(self_) + " (" + why + "); " + suggestion;
  out_.send(to, {.what = message_kind::refused,
                 .flags = pulls ? refuses_pull : std::uint8_t{0},
                 .range = asked.range,
                 .number = asked.number,
                 .payload = std::as_bytes(std::span(text))});
}

void server::hear_pull(const member& from, const message& said) {
  if (const auto why = values_.problem_with(said.range, said); !why.empty()) return refuse(from, said, why);
  if (is_ready(from, said) && out_.has_room(from)) return send_values(from, said);
  const bool known = std::ranges::any_of(parked_, [&](const parked_pull& one) {
    return one.from == from && one.what.range == said.range && one.what.number == said.number;
  });
  if (known || parked_.size() >= most_parked) return;
  parked_.push_back({from, said, {said.payload.begin(), said.payload.end()}});
}

bool server::is_ready(const member& from, const message& pull) const {
  const auto& range = ranges_[pull.range];
  // A newer map may have the range elsewhere, with pushes that its worker's clock stands for and that are not here.
  if (!range.answers() || newest_ > map_.version) return false;
  if (pull.version > 0) {  // with its own pushes up to that one
    if (from.at >= range.workers.size()) return false;
    const auto& its = range.workers[from.at];
    if (its.incarnation != from.incarnation || its.applied < pull.version) return false;
  }
  return pull.flags == leases || settings_.how.answers(pull.clock, slowest_, range.folded);
}

void server::send_values(const member& to, const message& pull) {
  const auto values = values_.read(pull.range, pull);
  if (values.size() > most_payload) {
    return refuse(to, pull,
                  "its values are " + std::to_string(values.size()) + " bytes, of which a message has at most " +
                      std::to_string(most_payload),
                  "give its table more ranges");
  }
  out_.send(to, {.what = message_kind::values,
                 .flags = pull.flags,
                 .range = pull.range,
                 .offset = pull.offset,
                 .count = pull.count,
                 .number = pull.number,
                 .version = ranges_[pull.range].applied,
                 .clock = slowest_,
                 .payload = values});
}

void server::hear_pulse(const member& from, const message& said) {
  const bool leaves = (said.flags & says_goodbye) != 0;
  if (leaves)  // no worker needs to wait for it
    peers_.find(from)->dead = peers_.find(from)->said_goodbye = heard_farewell_ = true;
  if ((said.flags & knows_end) != 0) {
    informed_.insert(from.at);
    return;
  }
  if (fenced_ || (!leaves && (said.flags & wants_word) == 0)) return;
  out_.send(from, {.what = message_kind::alive, .flags = leaves ? says_goodbye : std::uint8_t{0}});
}

// ---- the log ----

server::push_watermark& server::watermark_of(held_range& range, node_id worker) {
  if (range.workers.size() <= worker) range.workers.resize(worker + 1);
  return range.workers[worker];
}

// At any server of the chain: the next entry takes effect.
void server::apply(range_id id, held_range& range, const log_entry& entry) {
  ++range.applied;
  if (range.successor == no_node) range.committed = range.applied;  // no other server is to have it
  if (entry.what == log_entry::kind::gone) return values_.apply(id, entry);
  if (entry.what == log_entry::kind::fold) {
    range.folded = entry.push.clock + 1;
    range.scale.reset();
    fastest_ = std::max(fastest_, range.folded);
    values_.apply(id, entry);
    for (node_id at = 0; at < range.workers.size(); ++at) {
      auto& its = range.workers[at];
      if (its.early == 0 || its.early > range.folded) continue;
      its.early = 0;
      if (range.is_head()) ask_again(id, range, {at, its.incarnation}, its.applied + 1);
    }
    return;
  }
  auto& its = watermark_of(range, entry.from.at);
  if (its.incarnation != entry.from.incarnation) its = {entry.from.incarnation, its.to_acknowledge, its.age};
  its.applied = entry.push.number;
  if (entry.push.flags != leases) range.used.add(entry.push.place, entry.push.settled);
  if (entry.weight == 0) return;
  if (is_summed(entry.push) && entry.what == log_entry::kind::push) range.scale = entry.push.scale;
  values_.apply(id, entry);
}

// At the head, and behind it as entries come: applies, and hands on.
void server::append(range_id id, held_range& range, const log_entry& entry, clock::time_point now) {
  apply(id, range, entry);
  if (range.successor == no_node) {  // the tail waits for no server: the common case, and without a queue
    if (range.predecessor == no_node && entry.is_push()) {
      auto& its = range.workers[entry.from.at];
      its.committed = its.applied;
      acknowledge_to(id, range, entry.from.at);
    }
    return;
  }
  // The server behind may have to be told again, so the entry is kept: one allocation, which is the price of a copy.
  const auto payload = entry.push.payload;
  kept_entry kept{range.applied, std::vector<std::byte>(log_entry_head_bytes + payload.size())};
  encode_head(entry, kept.body.data());
  std::ranges::copy(payload, kept.body.begin() + log_entry_head_bytes);
  range.kept_bytes += kept.body.size();
  range.kept.push_back(std::move(kept));
  if (range.is_head() && entry.is_push()) range.waiting.push_back({range.applied, entry.from, entry.push.number});
  if (range.successor_is_learner && !range.successor_counts &&
      range.kept_bytes > std::max(settings_.window, range.copy_bytes))
    range.drop_kept();  // it will be given a copy
  settle(id, range);
  send_entries(id, range, now);
}

// The last of the chain knows by itself what all have.
void server::settle(range_id id, held_range& range) {
  if (range.as != role::holder || !range.has_state) return;
  if (range.successor == no_node || (range.successor_is_learner && !range.successor_counts)) {
    commit(id, range, range.applied);
  } else if (range.successor_is_learner) {
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
  const auto has = range.successor_is_learner ? range.behind_has : range.committed;
  while (!range.kept.empty() && range.kept.front().index <= has) {
    range.kept_bytes -= range.kept.front().body.size();
    range.kept.pop_front();
  }
  if (range.predecessor != no_node) acknowledge_to(id, range, no_node);
}

// `no_node`: to the predecessor.
void server::acknowledge_to(range_id id, held_range& range, node_id worker) {
  bool& is_noted = worker == no_node ? range.to_acknowledge : range.workers[worker].to_acknowledge;
  if (!std::exchange(is_noted, true)) acknowledge_.emplace_back(id, worker);
}

void server::flush() {
  std::erase_if(parked_, [&](parked_pull& one) {
    if (peers_.find(one.from) == nullptr || !ranges_[one.what.range].is_last()) return true;
    if (!is_ready(one.from, one.what) || !out_.has_room(one.from)) return false;
    one.what.payload = one.payload;
    send_values(one.from, one.what);
    return true;
  });
  for (const auto& [id, to] : acknowledge_) {
    auto& range = ranges_[id];
    if (to == no_node) {
      if (!std::exchange(range.to_acknowledge, false) || range.predecessor == no_node || !range.has_state) continue;
      const bool learns = range.as == role::learner;
      tell_server(range.predecessor, {.what = learns ? message_kind::copied : message_kind::entry_ack,
                                      .range = id,
                                      .number = learns ? range.applied : range.committed,
                                      .clock = range.epoch});
    } else if (to < range.workers.size() && std::exchange(range.workers[to].to_acknowledge, false) && range.is_head()) {
      const auto& its = range.workers[to];
      if (peers_.find({to, its.incarnation}) == nullptr) continue;
      out_.send({to, its.incarnation}, {.what = message_kind::ack,
                                        .range = id,
                                        .count = its.age,
                                        .number = its.committed,
                                        .version = range.applied,
                                        .clock = range.epoch});
    }
  }
  acknowledge_.clear();
}

}}}  // namespace muster::v0::ps
