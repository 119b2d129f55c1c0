#include "rank_comparison.hpp"

#include <algorithm>
#include <utility>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/crc32c.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

#include "../comm/group/words.hpp"
#include "../core/wire.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::vector<state_property> unpacked(std::string_view text) {
  std::vector<state_property> all;
  for (wire_reader reader(text); !reader.rest().empty();) {
    const auto name = reader.text();
    all.push_back({std::string(name), std::string(reader.text())});
  }
  return all;
}

bool has(const std::vector<state_property>& all, const std::string& name) {
  return std::ranges::find(all, name, &state_property::name) != all.end();
}

bool is_of_arena(const state_part& part) { return part.name == "parameters" || part.name.starts_with("optimizer "); }

// A deadline is for one piece.
void broadcast_in_pieces(group& ranks, std::span<std::byte> bytes) {
  constexpr std::size_t piece = std::size_t{16} << 20;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(piece, bytes.size())))
    broadcast(ranks, bytes.first(std::min(piece, bytes.size())), 0);
}

// The position of rank 0, with what this start of the program has behind it.
void go_to_position_of_first(group& ranks, state& of) {
  state_position there = of.position();
  const state_position here = there;
  broadcast(ranks, std::span(&there, 1), 0);
  there.evaluations = here.evaluations;
  there.runs = here.runs;
  of.move_to(there);
}

// Returns why this rank cannot use it; empty where it can.
std::string take_part_of_first(group& ranks, const state_part& part) {
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

}  // namespace

std::uint64_t digest_of_bytes(std::span<const std::byte> bytes) {
  constexpr std::size_t block = std::size_t{64} << 10;
  digest all;
  for (std::size_t at = 0; at < bytes.size(); at += block)
    all.add(std::uint64_t{crc32c(bytes.subspan(at, std::min(block, bytes.size() - at)))});
  return all.value();
}

std::string packed(const std::vector<state_property>& properties) {
  wire_writer writer;
  for (const auto& one : properties) {
    writer.add_text(one.name);
    writer.add_text(one.value);
  }
  return writer.take();
}

std::string first_difference(std::string_view one, const std::string& of_one, std::string_view other,
                             const std::string& of_other) {
  const auto mine = unpacked(one), theirs = unpacked(other);
  for (std::size_t k = 0; k < std::max(mine.size(), theirs.size()); ++k) {
    if (k < mine.size() && k < theirs.size() && mine[k] == theirs[k]) continue;
    if (k < theirs.size() && !has(mine, theirs[k].name))
      return of_other + " has " + theirs[k].name + ", which " + of_one + " has not";
    if (k < mine.size() && !has(theirs, mine[k].name))
      return of_one + " has " + mine[k].name + ", which " + of_other + " has not";
    if (k == mine.size() || k == theirs.size()) return of_one + " and " + of_other + " have another number of parts";
    if (mine[k].name != theirs[k].name)
      return of_one + " has " + mine[k].name + " where " + of_other + " has " + theirs[k].name;
    return mine[k].name + " is " + mine[k].value + " at " + of_one + " and " + theirs[k].value + " at " + of_other;
  }
  return {};
}

void throw_mismatch(group& ranks, const std::string& text) {
  try {
    barrier(ranks);
  } catch (const error&) {  // ranks that have passed it, or fail otherwise
  }
  throw mismatch_error(text);
}

void require_equal_properties(group& ranks, const std::vector<state_property>& mine) {
  if (ranks.size() == 1) return;
  const std::string text = packed(mine);
  const std::uint64_t digest_here[] = {digest().add(text).value()};
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  allgather(ranks, digest_here, all);
  const auto other = std::ranges::find_if(all, [&](std::uint64_t one) { return one != all.front(); });
  if (other == all.end()) return;
  const int odd = static_cast<int>(other - all.begin());
  const std::string first = word_of(ranks, text, 0), theirs = word_of(ranks, text, odd);
  throw_mismatch(ranks, "the ranks cannot train together (" +
                            first_difference(first, "rank 0", theirs, "rank " + std::to_string(odd)) +
                            "); start all ranks with the same program, options and data");
}

std::vector<differing_part> differing_parts(group& ranks, std::span<const state_part> parts, int reference) {
  std::vector<std::uint64_t> mine;
  for (const auto& part : parts) mine.push_back(part.save ? digest_of_bytes(part.save()) : digest_of_bytes(part.bytes));
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(ranks.size()));
  if (!mine.empty()) allgather(ranks, mine, all);
  std::vector<differing_part> found;
  for (std::size_t part = 0; part < mine.size(); ++part) {
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const auto of = [&](int one) { return all[static_cast<std::size_t>(one) * mine.size() + part]; };
      if (of(rank) == of(reference)) continue;
      found.push_back({part, rank});
      break;
    }
  }
  return found;
}

void begin_together(group& ranks, state& of) {
  if (ranks.size() == 1) return;
  (void)of.parts();
  require_equal_properties(ranks, of.properties());
  const state_position here = of.position();
  const std::uint64_t place[] = {here.steps, here.at.epoch, here.at.position};
  std::vector<std::uint64_t> places(std::size(place) * static_cast<std::size_t>(ranks.size()));
  allgather(ranks, place, places);
  bool has_moved = false;
  for (std::size_t k = 0; k < places.size(); ++k) has_moved = has_moved || places[k] != places[k % std::size(place)];
  if (has_moved) go_to_position_of_first(ranks, of);

  std::vector<state_part> parts;
  for (const auto& part : std::as_const(of).parts()) {
    if (part.kind == state_kind::replicated || (part.name == "parameters" && of.steps() == 0)) parts.push_back(part);
  }
  const auto others = differing_parts(ranks, parts, 0);
  std::string problem;
  for (const auto& one : others) {
    const auto why = take_part_of_first(ranks, parts[one.part]);
    if (problem.empty()) problem = why;
  }
  if (!others.empty()) {
    const auto problems = words_of_all(ranks, problem);
    for (std::size_t rank = 0; rank < problems.size(); ++rank) {
      if (!problems[rank].empty())
        throw_mismatch(ranks, "rank " + std::to_string(rank) + " cannot begin with rank 0: " + problems[rank]);
    }
  }
  if (ranks.rank() != 0 || (others.empty() && !has_moved)) return;
  log(log_level::warning,
      (others.empty() ? "the position of a rank"
                      : "'" + parts[others.front().part].name + "' of rank " + std::to_string(others.front().rank)) +
          " was not that of rank 0 at the start; all ranks begin with rank 0's values");
}

void require_equal_replicas(group& ranks, const state& of) {
  if (ranks.size() == 1) return;
  std::vector<state_part> parts;
  for (const auto& part : of.parts()) {
    if (part.kind == state_kind::replicated && is_of_arena(part)) parts.push_back(part);
  }
  const auto others = differing_parts(ranks, parts, 0);
  if (others.empty()) return;
  throw_mismatch(ranks,
                 "'" + parts[others.front().part].name + "' of ranks 0 and " + std::to_string(others.front().rank) +
                     " differ after step " + std::to_string(of.steps()) +
                     " (the replicas have parted: a rank has updated with another rate, or with something that is not "
                     "of the state); compute the same update at every rank");
}

}}}  // namespace muster::v0::detail
