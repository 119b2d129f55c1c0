// What the servers of a range's chain say to each other: entries of its log, copies for those that learn it.
#include "server.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace muster { inline namespace v0 { namespace ps {
namespace {

// In the flags of `copied`: it has no state at all, and needs a copy.
constexpr std::uint8_t has_nothing = 1;

}  // namespace

void server::hear_server(const member& from, const message& said, clock::time_point now) {
  if (said.what < message_kind::entry || said.range >= ranges_.size()) return;
  auto& range = ranges_[said.range];
  if (said.epoch() != range.epoch) return;  // one of the two has not read the newest map
  switch (said.what) {
    case message_kind::entry:
      return hear_entry(from.at, said, range, now);
    case message_kind::copy:
      return hear_copy(from.at, said, range);
    case message_kind::offer:
      if (from.at != range.predecessor) return;
      out_.send(from, {.what = message_kind::copied,
                       .flags = range.has_state ? std::uint8_t{0} : has_nothing,
                       .range = said.range,
                       .number = range.applied,
                       .clock = range.epoch});
      return;
    case message_kind::copied:
      if (from.at == range.successor && range.has_state && said.number <= range.applied) hear_copied(said, range, now);
      return;
    case message_kind::entry_ack:
      if (from.at != range.successor || range.successor_is_learner || said.number > range.applied) return;
      range.behind_has = std::max(range.behind_has, said.number);
      return commit(said.range, range, said.number);
    default:
      return;
  }
}

void server::hear_entry(node_id from, const message& said, held_range& range, clock::time_point now) {
  if (from != range.predecessor || !range.has_state) return;
  if (said.number == range.applied + 1) {  // one that came before is acknowledged again; so is what there is before one
                                           // that is missing
    const auto entry = decode_entry(said.payload);
    if (!entry) return;
    append(said.range, range, *entry, now);
  }
  acknowledge_to(said.range, range, no_node);
}

// How far the one behind is: the answer to an offer, or a learner's acknowledgement.
void server::hear_copied(const message& said, held_range& range, clock::time_point now) {
  const range_id id = said.range;
  range.behind_has = std::max(range.behind_has, said.number);
  const bool follows =
      range.behind_has == range.applied || (!range.kept.empty() && range.kept.front().index <= range.behind_has + 1);
  const bool nothing = (said.flags & has_nothing) != 0;
  if ((nothing && !range.behind_known) || !follows) {
    // Each copy begins the log anew: one in the place of one that is under way would never be followed.
    const bool has_come = !nothing && said.number >= range.copied;
    if (range.successor_is_learner && (has_come || now >= range.copy_until)) send_copy(id, range, now);
    return;
  }
  if (!std::exchange(range.behind_known, true)) range.sent = range.behind_has;
  if (range.successor_is_learner) {
    range.successor_counts = true;
    commit(id, range, std::min(range.applied, range.behind_has));
  }
  send_entries(id, range, now);
}

// A neighbour in a chain of this map.
void server::tell_server(node_id to, const message& what) {
  if (const auto* const entry = map_.server(to)) out_.send(entry->node, what);
}

void server::offer(range_id id, held_range& range, clock::time_point now) {
  range.said = now;
  tell_server(range.successor, {.what = message_kind::offer, .range = id, .clock = range.epoch});
}

void server::send_entries(range_id id, held_range& range, clock::time_point now) {
  if (!range.behind_known || range.kept.empty()) return;
  const auto first = range.kept.front().index;
  for (auto next = std::max(range.sent + 1, first); next < first + range.kept.size(); ++next) {
    tell_server(range.successor, {.what = message_kind::entry,
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
  muster::detail::wire_writer all;
  all.add(range.folded, std::uint8_t{range.scale.has_value()}, range.scale.value_or(1.0f));
  all.add(std::uint64_t{range.workers.size()});
  for (const auto& its : range.workers) all.add(its.incarnation, its.applied);
  range.used.save(all);
  values_.save(id, all);
  const std::string text = all.take();
  range.drop_kept();
  range.copied = range.applied;
  range.copy_bytes = text.size();
  range.copy_wait = std::max(settings_.silence, 2 * range.copy_wait);
  range.copy_until = now + range.copy_wait;
  range.said = now;
  const auto pieces = static_cast<std::uint32_t>((text.size() + settings_.copy_piece - 1) / settings_.copy_piece);
  for (std::uint32_t i = 0; i < pieces; ++i) {
    const auto part = std::string_view(text).substr(i * settings_.copy_piece, settings_.copy_piece);
    tell_server(range.successor, {.what = message_kind::copy,
                                  .range = id,
                                  .offset = i,
                                  .count = pieces,
                                  .number = range.applied,
                                  .clock = range.epoch,
                                  .payload = std::as_bytes(std::span(part))});
  }
}

void server::hear_copy(node_id from, const message& said, held_range& range) {
  if (from != range.predecessor || range.as != role::learner) return;
  if (!range.has_state || said.number > range.applied) {
    std::vector<std::byte> whole;
    if (said.count > 1) {  // what is lost of them comes with the next copy: of the same place, it is the same
      if (said.number > range.pieces.number) range.pieces = {.number = said.number};
      if (said.number != range.pieces.number || said.offset >= said.count) return;
      auto& come = range.pieces.come;
      come.try_emplace(said.offset, said.payload.begin(), said.payload.end());
      if (come.size() < said.count) return;
      for (auto& [at, piece] : std::exchange(come, {})) whole.insert(whole.end(), piece.begin(), piece.end());
    }
    muster::detail::wire_reader in(said.count > 1 ? std::span<const std::byte>(whole) : said.payload);
    const auto folded = in.number<std::uint64_t>();
    const bool has_scale = in.number<std::uint8_t>() != 0;
    const auto scale = in.number<float>();
    std::vector<push_watermark> workers(in.count(sizeof(std::uint32_t) + sizeof(std::uint64_t), most_nodes));
    for (auto& its : workers) in.read(its.incarnation, its.applied);
    used_places used;
    used.load(in);
    if (!in.good() || !values_.load(said.range, in.rest())) return;
    range.used = std::move(used);
    range.has_state = true;
    range.folded = folded;
    if (has_scale) range.scale = scale;
    fastest_ = std::max(fastest_, folded);
    range.workers = std::move(workers);
    range.applied = range.committed = said.number;
  }
  acknowledge_to(said.range, range, no_node);
}

}}}  // namespace muster::v0::ps
