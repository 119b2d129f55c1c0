// The messages between the servers of a chain: log entries, and copies for learners.
#pragma once

#include <muster/ps/protocol/server_protocol.hpp>

#include <algorithm>
#include <string_view>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {
namespace detail {

// Flag of `copied`: the sender has no state and needs a copy.
inline constexpr std::uint8_t has_nothing = 1;

}  // namespace detail

inline void server::on_server_message(const member& sender, const message& msg, clock::time_point now) {
  if (msg.kind < message_kind::entry || msg.range >= ranges_.size()) return;
  auto& range = ranges_[msg.range];
  if (msg.epoch() != range.epoch) return;  // either server has not read the newest map
  switch (msg.kind) {
    case message_kind::entry:
      return on_entry(sender.place, msg, range, now);
    case message_kind::copy:
      return on_copy(sender.place, msg, range);
    case message_kind::offer:
      if (sender.place != range.predecessor) return;
      outlet_.send(sender, {.kind = message_kind::copied,
                            .flags = range.has_state ? std::uint8_t{0} : detail::has_nothing,
                            .range = msg.range,
                            .number = range.applied,
                            .clock = range.epoch});
      return;
    case message_kind::copied:
      if (sender.place == range.successor && range.has_state && msg.number <= range.applied) on_copied(msg, range, now);
      return;
    case message_kind::entry_ack:
      if (sender.place != range.successor || range.successor_is_learner || msg.number > range.applied) return;
      range.successor_ack = std::max(range.successor_ack, msg.number);
      return commit(msg.range, range, msg.number);
    default:
      return;
  }
}

// Applies the predecessor's entry if it is the next, and passes it on.
inline void server::on_entry(node_id sender, const message& msg, held_range& range, clock::time_point now) {
  if (sender != range.predecessor || !range.has_state) return;
  // An entry that arrived before is acknowledged again. If an entry is missing, the last applied entry is acknowledged.
  if (msg.number == range.applied + 1) {
    const auto entry = decode_entry(msg.payload);
    if (!entry) return;
    append(msg.range, range, *entry, now);
  }
  acknowledge_to(msg.range, range, no_node);
}

// The successor reports its last applied entry: in an answer to an offer, or as a learner's acknowledgement.
inline void server::on_copied(const message& msg, held_range& range, clock::time_point now) {
  const range_id id = msg.range;
  range.successor_ack = std::max(range.successor_ack, msg.number);
  const bool follows = range.successor_ack == range.applied ||
                       (!range.retained.empty() && range.retained.front().index <= range.successor_ack + 1);
  const bool needs_copy = (msg.flags & detail::has_nothing) != 0;
  if ((needs_copy && !range.successor_known) || !follows) {
    // Each copy discards the retained log. If a new copy replaced a copy in transit, the learner would never reach the
    // log.
    const bool copy_applied = !needs_copy && msg.number >= range.copied_up_to;
    if (range.successor_is_learner && (copy_applied || now >= range.copy_until)) send_copy(id, range, now);
    return;
  }
  if (!std::exchange(range.successor_known, true)) range.sent = range.successor_ack;
  if (range.successor_is_learner) {
    range.learner_must_acknowledge = true;
    commit(id, range, std::min(range.applied, range.successor_ack));
  }
  send_entries(id, range, now);
}

// Sends to a server in a chain of the present map.
inline void server::send_to_server(node_id node, const message& msg) {
  if (const auto* const entry = map_.server(node)) outlet_.send(entry->node, msg);
}

// Asks the successor for its last applied entry, before entries are sent.
inline void server::offer(range_id range_number, held_range& range, clock::time_point now) {
  range.last_sent = now;
  send_to_server(range.successor, {.kind = message_kind::offer, .range = range_number, .clock = range.epoch});
}

// Sends the retained entries that were not sent to the successor yet.
inline void server::send_entries(range_id range_number, held_range& range, clock::time_point now) {
  if (!range.successor_known || range.retained.empty()) return;
  const auto first = range.retained.front().index;
  for (auto next = std::max(range.sent + 1, first); next < first + range.retained.size(); ++next) {
    send_to_server(range.successor, {.kind = message_kind::entry,
                                     .range = range_number,
                                     .number = next,
                                     .clock = range.epoch,
                                     .payload = range.retained[next - first].body});
    range.sent = next;
    range.last_sent = now;
  }
}

// Sends the values together with the watermarks of the pushes that they contain.
inline void server::send_copy(range_id range_number, held_range& range, clock::time_point now) {
  muster::detail::wire_writer all;
  all.add(range.folded, std::uint8_t{range.scale.has_value()}, range.scale.value_or(1.0f));
  all.add(std::uint64_t{range.workers.size()});
  for (const auto& watermark : range.workers) all.add(watermark.incarnation, watermark.applied);
  range.used.save(all);
  values_.save(range_number, all);
  const std::string text = all.take();
  range.drop_retained();
  range.copied_up_to = range.applied;
  range.copy_bytes = text.size();
  range.copy_wait = std::max(settings_.detection_silence, 2 * range.copy_wait);
  range.copy_until = now + range.copy_wait;
  range.last_sent = now;
  const auto pieces = static_cast<std::uint32_t>((text.size() + settings_.copy_piece - 1) / settings_.copy_piece);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const auto part = std::string_view(text).substr(i * settings_.copy_piece, settings_.copy_piece);
    send_to_server(range.successor, {.kind = message_kind::copy,
                                     .range = range_number,
                                     .offset = i,
                                     .count = pieces,
                                     .number = range.applied,
                                     .clock = range.epoch,
                                     .payload = std::as_bytes(std::span(part))});
  }
}

// At a learner: joins the pieces of a copy, and continues from its values unless the learner has applied more entries.
inline void server::on_copy(node_id sender, const message& msg, held_range& range) {
  if (sender != range.predecessor || range.own_role != role::learner) return;
  if (!range.has_state || msg.number > range.applied) {
    std::vector<std::byte> joined;
    if (msg.count > 1) {  // lost pieces arrive with the next copy, which is identical if it has the same index
      if (msg.number > range.pieces.number) range.pieces = {.number = msg.number};
      if (msg.number != range.pieces.number || msg.offset >= msg.count) return;
      auto& received = range.pieces.received;
      received.try_emplace(msg.offset, msg.payload.begin(), msg.payload.end());
      if (received.size() < msg.count) return;
      for (auto& [at, piece] : std::exchange(received, {})) joined.insert(joined.end(), piece.begin(), piece.end());
    }
    muster::detail::wire_reader reader(msg.count > 1 ? std::span<const std::byte>(joined) : msg.payload);
    const auto folded = reader.number<std::uint64_t>();
    const bool has_scale = reader.number<std::uint8_t>() != 0;
    const auto scale = reader.number<float>();
    std::vector<push_watermark> workers(reader.count(sizeof(std::uint32_t) + sizeof(std::uint64_t), most_nodes));
    for (auto& watermark : workers) reader.read(watermark.incarnation, watermark.applied);
    used_places used;
    used.load(reader);
    if (!reader.good() || !values_.load(msg.range, reader.rest())) return;
    range.used = std::move(used);
    range.has_state = true;
    range.folded = folded;
    if (has_scale) range.scale = scale;
    fastest_ = std::max(fastest_, folded);
    range.workers = std::move(workers);
    range.applied = range.committed = msg.number;
  }
  acknowledge_to(msg.range, range, no_node);
}

}}}  // namespace muster::v0::ps
