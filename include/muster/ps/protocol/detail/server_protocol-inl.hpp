#pragma once

#include <muster/ps/protocol/server_protocol.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

// Maximum number of waiting pulls. The workers of other pulls send them again.
inline constexpr std::size_t most_waiting_pulls = 4096;

}  // namespace detail

inline server::server(member self, const protocol_settings& settings, range_storage& storage, server_output& outlet,
                      const shard_map& map)
    : self_(self), settings_(settings), values_(storage), outlet_(outlet), ranges_(map.ranges.size()) {
  // A server that is in the first map holds its ranges in their initial state.
  for (range_id id = 0; id < ranges_.size(); ++id)
    ranges_[id].has_state = map.has_server(self_) && map.ranges[id].holds(self_.place);
  apply_map(map, {});
}

// ---- frames ----

inline void server::on_frame(std::span<const std::byte> frame, clock::time_point now,
                             std::span<const std::byte> payload) {
  const auto head = decode_head(frame);
  if (!head || (head->receiver_incarnation != 0 && head->receiver_incarnation != self_.incarnation)) return;
  auto* const known_peer = peers_.find(head->sender);
  message msg;
  message_reader in(frame.subspan(frame_head_bytes), payload);
  if (known_peer == nullptr) {
    bool is_last = false;
    while (in.next(msg)) {
      if (msg.kind != message_kind::pulse) continue;
      if ((msg.flags & is_farewell) != 0) received_farewell_ = true;
      if ((msg.flags & is_acknowledged) != 0) is_last = acknowledged_workers_.insert(head->sender.place).second;
    }
    if (is_last) return;
    // The sender is fenced, and is notified. Or the sender is new, and this server does not know it yet.
    if (!fenced_ && head->map_version <= map_.version) outlet_.send(head->sender, {.kind = message_kind::fenced});
    return;
  }
  known_peer->last_received = now;
  known_peer->suspect = false;
  newest_map_ = std::max(newest_map_, head->map_version);
  while (in.next(msg))
    known_peer->is_worker ? on_worker_message(head->sender, msg, now) : on_server_message(head->sender, msg, now);
  if (!known_peer->is_worker || head->clock <= known_peer->clock) return;
  known_peer->clock = head->clock;
  on_clocks_changed(now);
}

inline void server::on_worker_message(const member& worker, const message& msg, clock::time_point now) {
  if (msg.kind == message_kind::pulse) return on_pulse(worker, msg);
  if (msg.range >= ranges_.size())
    return refuse(worker, msg, "the job has " + std::to_string(ranges_.size()) + " ranges");
  auto& range = ranges_[msg.range];  // if another server holds the range, the worker's next map names that server
  if (msg.kind == message_kind::push && range.serves()) return on_push(worker, msg, range, now);
  if (msg.kind == message_kind::pull && range.is_tail()) return on_pull(worker, msg);
}

// Asks the worker to send its pushes again from the sequence `expected` on.
inline void server::request_resend(range_id range_number, const held_range& range, const member& worker,
                                   std::uint64_t expected) {
  outlet_.send(worker, {.kind = message_kind::resend, .range = range_number, .number = expected, .clock = range.epoch});
}

inline void server::on_push(const member& worker, const message& msg, held_range& range, clock::time_point now) {
  auto& watermark = watermark_of(range, worker.place);
  const bool new_incarnation = worker.incarnation != watermark.incarnation;
  if (new_incarnation && worker.incarnation < watermark.incarnation) return;
  const std::uint64_t expected = new_incarnation ? 1 : watermark.applied + 1;
  if (msg.number < expected) return acknowledge_to(msg.range, range, worker.place);
  if (msg.number > expected) {
    if (new_incarnation || watermark.early_clock == 0) request_resend(msg.range, range, worker, expected);
    return;
  }
  if (msg.flags == leases) return on_lease_claim(worker, msg, range, now);
  const bool sums = is_summed(msg);
  if (sums && msg.clock > range.folded) {  // the worker keeps the push: this server sums only one clock
    if (new_incarnation) watermark = {worker.incarnation, watermark.to_acknowledge, watermark.age};
    watermark.early_clock = msg.clock;
    return;
  }
  if (!std::isfinite(msg.scale)) return refuse(worker, msg, "its scale is " + std::to_string(msg.scale));
  if (const auto problem = values_.problem_with(msg.range, msg); !problem.empty()) return refuse(worker, msg, problem);
  const bool differs_in_scale = sums && range.scale.value_or(msg.scale) != msg.scale;
  // Another worker may continue an unfinished part of a batch in a later clock, perhaps with a different scale.
  const bool late = sums && (msg.clock < range.folded || (differs_in_scale && msg.place != 0));
  const bool used_place = range.used.has(msg.place);
  if (!late && !used_place && differs_in_scale) {
    return refuse(worker, msg,
                  "its scale is " + std::to_string(msg.scale) + ", and the other pushes of clock " +
                      std::to_string(msg.clock) + " have " + std::to_string(*range.scale),
                  "their sum is one update, so push all of a clock with one scale");
  }
  log_entry entry{.type = late ? log_entry::kind::late : log_entry::kind::push, .sender = worker, .push = msg};
  const auto age = range.applied - std::min(range.applied, msg.version);
  const bool is_gradient = (msg.flags & (assigns | restores)) == 0;  // assigned values have no age
  if (is_gradient && settings_.model.old_pushes != consistency::policy::keep)
    entry.weight = settings_.model.weight_of(age);
  if (used_place) entry.weight = 0;
  watermark.age = static_cast<std::uint32_t>(std::min<std::uint64_t>(age, std::numeric_limits<std::uint32_t>::max()));
  append(msg.range, range, entry, now);
}

// The assignment of batches depends on the workers in this server's map. Therefore the log contains them.
inline void server::on_lease_claim(const member& worker, const message& msg, held_range& range, clock::time_point now) {
  if (const auto problem = values_.problem_with(msg.range, msg); !problem.empty()) return refuse(worker, msg, problem);
  log_entry entry{.sender = worker, .push = msg};
  if (msg.payload.empty()) entry.push.payload = std::as_bytes(std::span(map_.workers));
  append(msg.range, range, entry, now);
}

// The worker sends the request again until it receives this answer.
inline void server::refuse(const member& worker, const message& request, const std::string& reason,
                           const char* suggestion) {
  const bool pulls = request.kind == message_kind::pull;
  if (!pulls && request.kind != message_kind::push) return;
  const std::string text = (pulls ? "pull " : "push ") + std::to_string(request.number) + " of worker " +
                           to_string(worker) + (pulls ? " from" : " to") + " range " + std::to_string(request.range) +
                           " is refused by server " + to_string(self_) + " (" + reason + "); " + suggestion;
  outlet_.send(worker, {.kind = message_kind::refused,
                        .flags = pulls ? refuses_pull : std::uint8_t{0},
                        .range = request.range,
                        .number = request.number,
                        .payload = std::as_bytes(std::span(text))});
}

// Answers a pull, or keeps it in `waiting_pulls_` until it is ready.
inline void server::on_pull(const member& worker, const message& msg) {
  if (const auto problem = values_.problem_with(msg.range, msg); !problem.empty()) return refuse(worker, msg, problem);
  if (is_ready(worker, msg) && outlet_.has_room(worker)) return send_values(worker, msg);
  const bool known = std::ranges::any_of(waiting_pulls_, [&](const waiting_pull& other) {
    return other.sender == worker && other.pull.range == msg.range && other.pull.number == msg.number;
  });
  if (known || waiting_pulls_.size() >= detail::most_waiting_pulls) return;
  waiting_pulls_.push_back({worker, msg, {msg.payload.begin(), msg.payload.end()}});
}

// Returns true if the range's values at this server satisfy the pull: its clock, and the worker's own pushes.
inline bool server::is_ready(const member& worker, const message& pull) const {
  const auto& range = ranges_[pull.range];
  // In a newer map another server may hold the range, with pushes that the worker's clock covers and this server lacks.
  if (!range.may_answer() || newest_map_ > map_.version) return false;
  if (pull.version > 0) {  // the values must include the worker's own pushes up to this sequence
    if (worker.place >= range.workers.size()) return false;
    const auto& watermark = range.workers[worker.place];
    if (watermark.incarnation != worker.incarnation || watermark.applied < pull.version) return false;
  }
  return pull.flags == leases || settings_.model.answers(pull.clock, slowest_, range.folded);
}

inline void server::send_values(const member& worker, const message& pull) {
  const auto values = values_.read(pull.range, pull);
  if (values.size() > most_payload) {
    return refuse(worker, pull,
                  "its values are " + std::to_string(values.size()) + " bytes, and a message has at most " +
                      std::to_string(most_payload),
                  "give its table more ranges");
  }
  outlet_.send(worker, {.kind = message_kind::values,
                        .flags = pull.flags,
                        .range = pull.range,
                        .offset = pull.offset,
                        .count = pull.count,
                        .number = pull.number,
                        .version = ranges_[pull.range].applied,
                        .clock = slowest_,
                        .payload = values});
}

// Handles a worker's heartbeat or farewell.
inline void server::on_pulse(const member& worker, const message& msg) {
  const bool leaves = (msg.flags & is_farewell) != 0;
  if (leaves)  // no worker needs to wait for this worker
    peers_.find(worker)->dead = peers_.find(worker)->has_left = received_farewell_ = true;
  if ((msg.flags & is_acknowledged) != 0) {
    acknowledged_workers_.insert(worker.place);
    return;
  }
  if (fenced_ || (!leaves && (msg.flags & wants_reply) == 0)) return;
  outlet_.send(worker, {.kind = message_kind::alive, .flags = leaves ? is_farewell : std::uint8_t{0}});
}

// ---- the log ----

inline server::push_watermark& server::watermark_of(held_range& range, node_id worker) {
  if (range.workers.size() <= worker) range.workers.resize(worker + 1);
  return range.workers[worker];
}

// At every server of the chain: applies the next entry of the log.
inline void server::apply(range_id range_number, held_range& range, const log_entry& entry) {
  ++range.applied;
  if (range.successor == no_node) range.committed = range.applied;  // this server is the tail
  if (entry.type == log_entry::kind::worker_left) return values_.apply(range_number, entry);
  if (entry.type == log_entry::kind::fold) {
    range.folded = entry.push.clock + 1;
    range.scale.reset();
    fastest_ = std::max(fastest_, range.folded);
    values_.apply(range_number, entry);
    for (node_id node = 0; node < range.workers.size(); ++node) {
      auto& watermark = range.workers[node];
      if (watermark.early_clock == 0 || watermark.early_clock > range.folded) continue;
      watermark.early_clock = 0;
      if (range.is_head()) request_resend(range_number, range, {node, watermark.incarnation}, watermark.applied + 1);
    }
    return;
  }
  auto& watermark = watermark_of(range, entry.sender.place);
  if (watermark.incarnation != entry.sender.incarnation)
    watermark = {entry.sender.incarnation, watermark.to_acknowledge, watermark.age};
  watermark.applied = entry.push.number;
  if (entry.push.flags != leases) range.used.add(entry.push.place, entry.push.settled);
  if (entry.weight == 0) return;
  if (is_summed(entry.push) && entry.type == log_entry::kind::push) range.scale = entry.push.scale;
  values_.apply(range_number, entry);
}

// At the head for a push, at other servers for an entry: applies the entry and forwards it to the successor.
inline void server::append(range_id range_number, held_range& range, const log_entry& entry, clock::time_point now) {
  apply(range_number, range, entry);
  if (range.successor == no_node) {  // the tail waits for no server: the frequent case, which needs no queue
    if (range.predecessor == no_node && entry.is_push()) {
      auto& watermark = range.workers[entry.sender.place];
      watermark.committed = watermark.applied;
      acknowledge_to(range_number, range, entry.sender.place);
    }
    return;
  }
  // The successor may need the entry again, so the entry is retained. This costs one allocation.
  const auto payload = entry.push.payload;
  retained_entry record{range.applied, std::vector<std::byte>(log_entry_head_bytes + payload.size())};
  encode_head(entry, record.body.data());
  std::ranges::copy(payload, record.body.begin() + log_entry_head_bytes);
  range.retained_bytes += record.body.size();
  range.retained.push_back(std::move(record));
  if (range.is_head() && entry.is_push()) range.waiting.push_back({range.applied, entry.sender, entry.push.number});
  if (range.successor_is_learner && !range.learner_must_acknowledge &&
      range.retained_bytes > std::max(settings_.most_learner_lag, range.copy_bytes))
    range.drop_retained();  // the learner will receive a new copy
  commit_as_tail(range_number, range);
  send_entries(range_number, range, now);
}

// The tail commits without waiting for a message, unless a learner must have the entries.
inline void server::commit_as_tail(range_id range_number, held_range& range) {
  if (range.own_role != role::holder || !range.has_state) return;
  if (range.successor == no_node || (range.successor_is_learner && !range.learner_must_acknowledge)) {
    commit(range_number, range, range.applied);
  } else if (range.successor_is_learner) {
    commit(range_number, range, std::min(range.applied, range.successor_ack));
  }
}

// Commits the entries up to that index: acknowledges their pushes, and drops the entries that the successor has.
inline void server::commit(range_id range_number, held_range& range, std::uint64_t up_to) {
  range.committed = std::max(range.committed, up_to);
  while (!range.waiting.empty() && range.waiting.front().index <= range.committed) {
    const auto& done = range.waiting.front();
    auto& watermark = range.workers[done.sender.place];
    if (watermark.incarnation == done.sender.incarnation) {
      watermark.committed = std::max(watermark.committed, done.sequence);
      acknowledge_to(range_number, range, done.sender.place);
    }
    range.waiting.pop_front();
  }
  const auto reported_index = range.successor_is_learner ? range.successor_ack : range.committed;
  while (!range.retained.empty() && range.retained.front().index <= reported_index) {
    range.retained_bytes -= range.retained.front().body.size();
    range.retained.pop_front();
  }
  if (range.predecessor != no_node) acknowledge_to(range_number, range, no_node);
}

// Notes that an acknowledgement is due. `no_node` means the predecessor.
inline void server::acknowledge_to(range_id range_number, held_range& range, node_id worker) {
  bool& is_noted = worker == no_node ? range.to_acknowledge : range.workers[worker].to_acknowledge;
  if (!std::exchange(is_noted, true)) due_acks_.emplace_back(range_number, worker);
}

inline void server::send_due_replies() {
  std::erase_if(waiting_pulls_, [&](waiting_pull& waiting) {
    if (peers_.find(waiting.sender) == nullptr || !ranges_[waiting.pull.range].is_tail()) return true;
    if (!is_ready(waiting.sender, waiting.pull) || !outlet_.has_room(waiting.sender)) return false;
    waiting.pull.payload = waiting.payload;
    send_values(waiting.sender, waiting.pull);
    return true;
  });
  for (const auto& [id, receiver] : due_acks_) {
    auto& range = ranges_[id];
    if (receiver == no_node) {
      if (!std::exchange(range.to_acknowledge, false) || range.predecessor == no_node || !range.has_state) continue;
      const bool learns = range.own_role == role::learner;
      send_to_server(range.predecessor, {.kind = learns ? message_kind::copied : message_kind::entry_ack,
                                         .range = id,
                                         .number = learns ? range.applied : range.committed,
                                         .clock = range.epoch});
    } else if (receiver < range.workers.size() && std::exchange(range.workers[receiver].to_acknowledge, false) &&
               range.is_head()) {
      const auto& watermark = range.workers[receiver];
      if (peers_.find({receiver, watermark.incarnation}) == nullptr) continue;
      outlet_.send({receiver, watermark.incarnation}, {.kind = message_kind::ack,
                                                       .range = id,
                                                       .count = watermark.age,
                                                       .number = watermark.committed,
                                                       .version = range.applied,
                                                       .clock = range.epoch});
    }
  }
  due_acks_.clear();
}

}}}  // namespace muster::v0::ps
