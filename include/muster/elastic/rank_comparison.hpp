// Comparisons between ranks before they train together and during training.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/wire.hpp>
#include <muster/elastic/state.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns a digest by which ranks compare states. It works in blocks, so that it reads memory as fast as a checksum
/// does.
[[nodiscard]] std::uint64_t digest_of_bytes(std::span<const std::byte> bytes);

/// Returns the properties as one text, to be sent.
[[nodiscard]] std::string packed(const std::vector<compared_property>& properties);
/// Returns the first property that differs, as "the seed is 1 at rank 0 and 7 at rank 2"; empty if none differs. The
/// texts are results of `packed`, and the names identify the two ranks.
[[nodiscard]] std::string first_difference(std::string_view first, const std::string& first_name,
                                           std::string_view second, const std::string& second_name);

/// Throws mismatch_error, with the first property that differs, unless `difference` is empty.
void require_no_difference(const std::string& difference);

/// Throws mismatch_error at all ranks; collective. The error is thrown once each rank has the text: a rank could
/// otherwise detect the end of another rank first.
[[noreturn]] void throw_mismatch(group& ranks, const std::string& text);

/// Compares properties; collective. Throws mismatch_error at all ranks, with the first property that differs from those
/// of rank 0.
void require_equal_properties(group& ranks, const std::vector<compared_property>& mine);

/// A part whose value at this rank differs from the value at the reference rank.
struct differing_part {
  std::size_t part;
  int rank;
};
/// Returns, for each part that differs between ranks, the first rank whose value is not that of rank `reference`.
/// Collective; all ranks have these parts.
[[nodiscard]] std::vector<differing_part> differing_parts(group& ranks, std::span<const state_part> parts,
                                                          int reference);

/// Makes ranks begin together, each with its own state; collective. Throws mismatch_error at all ranks if their
/// properties differ. All ranks adopt the position and the replicated parts of rank 0, and before the first step also
/// its parameters if ranks have their own weights. A warning names the first part that differed.
void begin_together(group& ranks, state& target);

/// Compares replicas; collective. Throws mismatch_error at all ranks if the parameters, or an optimizer's arrays for
/// them, differ from those of rank 0.
void require_equal_replicas(group& ranks, const state& target);

inline std::vector<compared_property> unpacked(std::string_view text) {
  std::vector<compared_property> all;
  for (wire_reader reader(text); !reader.rest().empty();) {
    const auto name = reader.text();
    all.push_back({std::string(name), std::string(reader.text())});
  }
  return all;
}

inline bool has(const std::vector<compared_property>& all, const std::string& name) {
  return std::ranges::find(all, name, &compared_property::name) != all.end();
}

inline bool is_of_arena(const state_part& part) {
  return part.name == "parameters" || part.name.starts_with("optimizer ");
}

// Broadcasts in pieces, because a deadline applies to one piece.
inline void broadcast_in_pieces(group& ranks, std::span<std::byte> bytes) {
  constexpr std::size_t piece_bytes = std::size_t{16} << 20;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece_bytes, bytes.size())))
    broadcast(ranks, bytes.first(std::min(piece_bytes, bytes.size())), 0);
}

// Moves to the position of rank 0. Keeps this program's own counts of evaluations and runs.
inline void adopt_first_position(group& ranks, state& target) {
  state_position target_position = target.position();
  const state_position own_position = target_position;
  broadcast(ranks, std::span(&target_position, 1), 0);
  target_position.evaluations = own_position.evaluations;
  target_position.runs = own_position.runs;
  target.move_to(target_position);
}

// Copies the part from rank 0. Returns why this rank cannot use it; empty if it can.
inline std::string adopt_first_part(group& ranks, const state_part& part) {
  if (!part.save) {
    broadcast_in_pieces(ranks, part.bytes);
    return {};
  }
  std::vector<std::byte> bytes = part.save();
  std::uint64_t size = bytes.size();
  broadcast(ranks, std::span(&size, 1), 0);
  bytes.resize(static_cast<std::size_t>(size));
  broadcast_in_pieces(ranks, bytes);
  if (ranks.rank() == 0) return {};
  try {
    part.load(bytes);
  } catch (const error& refused) {
    return refused.what();
  }
  return {};
}

inline std::uint64_t digest_of_bytes(std::span<const std::byte> bytes) {
  constexpr std::size_t block = std::size_t{64} << 10;
  digest all;
  for (std::size_t at = 0; at < bytes.size(); at += block)
    all.add(std::uint64_t{crc32c(bytes.subspan(at, std::min(block, bytes.size() - at)))});
  return all.value();
}

inline std::string packed(const std::vector<compared_property>& properties) {
  wire_writer writer;
  for (const auto& property : properties) {
    writer.add_text(property.name);
    writer.add_text(property.value);
  }
  return writer.take();
}

inline std::string first_difference(std::string_view first, const std::string& first_name, std::string_view second,
                                    const std::string& second_name) {
  const auto mine = unpacked(first), theirs = unpacked(second);
  for (std::size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
    if (k < mine.size() && k < theirs.size() && mine[k] == theirs[k]) continue;
    if (k < theirs.size() && !has(mine, theirs[k].name))
      return second_name + " has " + theirs[k].name + ", which " + first_name + " has not";
    if (k < mine.size() && !has(theirs, mine[k].name))
      return first_name + " has " + mine[k].name + ", which " + second_name + " has not";
    if (k == mine.size() || k == theirs.size())
      return first_name + " and " + second_name + " have different numbers of parts";
    if (mine[k].name != theirs[k].name)
      return first_name + " has " + mine[k].name + " where " + second_name + " has " + theirs[k].name;
    return mine[k].name + " is " + mine[k].value + " at " + first_name + " and " + theirs[k].value + " at " +
           second_name;
  }
  return {};
}

inline void require_no_difference(const std::string& difference) {
  if (difference.empty()) return;
  throw mismatch_error("the ranks cannot train together (" + difference +
                       "); start all ranks with the same program, options and data");
}

// Waits until each rank has the text of an error.
inline void await_all(group& ranks) {
  try {
    barrier(ranks);
  } catch (const error&) {  // a rank has passed the barrier and ended, or has failed for another reason
  }
}

inline void throw_mismatch(group& ranks, const std::string& text) {
  await_all(ranks);
  throw mismatch_error(text);
}

inline void require_equal_properties(group& ranks, const std::vector<compared_property>& mine) {
  if (ranks.size() == 1) return;
  const std::string text = packed(mine);
  const std::uint64_t own_digest[] = {digest().add(text).value()};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, own_digest, all);
  const auto odd_value = std::ranges::find_if(all, [&](std::uint64_t value) { return value != all.front(); });
  if (odd_value == all.end()) return;
  const int odd_rank = static_cast<int>(odd_value - all.begin());
  const std::string first = broadcast_string(ranks, text, 0), theirs = broadcast_string(ranks, text, odd_rank);
  await_all(ranks);
  require_no_difference(first_difference(first, "rank 0", theirs, "rank " + std::to_string(odd_rank)));
}

inline std::vector<differing_part> differing_parts(group& ranks, std::span<const state_part> parts, int reference) {
  std::vector<std::uint64_t> mine;
  for (const auto& part : parts) mine.push_back(part.save ? digest_of_bytes(part.save()) : digest_of_bytes(part.bytes));
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  if (!mine.empty()) allgather(ranks, mine, all);
  std::vector<differing_part> found;
  for (std::size_t part = 0; part < mine.size(); ++part) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto digest_at = [&](int of_rank) { return all[static_cast<std::size_t>(of_rank) * mine.size() + part]; };
      if (digest_at(rank) == digest_at(reference)) continue;
      found.push_back({part, rank});
      break;
    }
  }
  return found;
}

inline void begin_together(group& ranks, state& target) {
  if (ranks.size() == 1) return;
  (void)target.parts();
  require_equal_properties(ranks, target.properties());
  const state_position position = target.position();
  const std::uint64_t place[] = {position.steps, position.data.epoch, position.data.position};
  std::vector<std::uint64_t> places(std::size(place) * static_cast<std::size_t>(ranks.size()));
  allgather(ranks, place, places);
  bool has_moved = false;
  for (std::size_t k = 0; k < places.size(); ++k) has_moved = has_moved || places[k] != places[k % std::size(place)];
  if (has_moved) adopt_first_position(ranks, target);

  std::vector<state_part> parts;
  for (const auto& part : std::as_const(target).parts()) {
    if (part.kind == state_kind::replicated || (part.name == "parameters" && target.steps() == 0))
      parts.push_back(part);
  }
  const auto differing = differing_parts(ranks, parts, 0);
  std::string problem;
  for (const auto& difference : differing) {
    const auto reason = adopt_first_part(ranks, parts[difference.part]);
    if (problem.empty()) problem = reason;
  }
  if (!differing.empty()) {
    const auto problems = allgather_strings(ranks, problem);
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (!problems[rank].empty())
        throw_mismatch(ranks, "rank " + std::to_string(rank) + " cannot begin with rank 0: " + problems[rank]);
    }
  }
  if (ranks.rank() != 0 || (differing.empty() && !has_moved)) return;
  log(log_level::warning, (differing.empty() ? "the position of a rank"
                                             : "'" + parts[differing.front().part].name + "' of rank " +
                                                   std::to_string(differing.front().rank)) +
                              " differed from rank 0's at the start; all ranks begin with rank 0's values");
}

inline void require_equal_replicas(group& ranks, const state& target) {
  if (ranks.size() == 1) return;
  std::vector<state_part> parts;
  for (const auto& part : target.parts()) {
    if (part.kind == state_kind::replicated && is_of_arena(part)) parts.push_back(part);
  }
  const auto differing = differing_parts(ranks, parts, 0);
  if (differing.empty()) return;
  throw_mismatch(
      ranks, "'" + parts[differing.front().part].name + "' of ranks 0 and " + std::to_string(differing.front().rank) +
                 " differ after step " + std::to_string(target.steps()) +
                 " (the replicas have diverged: a rank used another learning rate, or values that are not part "
                 "of the state); compute the same update at every rank");
}

}}}  // namespace muster::v0::detail
