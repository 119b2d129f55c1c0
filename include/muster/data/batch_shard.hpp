// The part of a global batch that each rank has.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/core/error.hpp>

namespace muster::inline v0 {

/// One rank's share of every batch: the `rank`-th of `world` parts. Names no group, so that data needs no comm.
struct batch_shard {
  int rank = 0;
  int world = 1;
  /// The batch is cut into so many parts, the same for every world, of which each rank has whole ones; 0: into `world`.
  int virtual_shards = 0;

  friend bool operator==(const batch_shard&, const batch_shard&) = default;
};

/// What a rank has of data in shards, which need not lie at every rank.
struct held_shards {
  std::vector<std::string> names{};  ///< of all shards, the same at every rank; empty: the data are not in shards
  std::vector<std::uint8_t> here{};  ///< of each, 1 if this rank can read it, else 0
  std::uint64_t weight = 1;          ///< how much this rank takes of what others have too; below 2^31

  friend bool operator==(const held_shards&, const held_shards&) = default;
};

/// The half-open range [first, last).
struct index_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] constexpr std::uint64_t size() const noexcept { return last - first; }
  friend bool operator==(const index_range&, const index_range&) = default;
};

/// The part of [0, count) that belongs to `part`: [rank * count / world, (rank + 1) * count / world), rounded down. The
/// parts of all ranks are disjoint, in the order of the ranks, make up the whole, and differ in size by at most one;
/// one may be empty. With virtual shards it is those of [0, virtual_shards) that make up a rank's part so. Throws
/// configuration_error unless 0 <= rank < world.
[[nodiscard]] inline index_range part_of(std::uint64_t count, batch_shard part) {
  if (part.rank < 0 || part.rank >= part.world) {
    throw configuration_error("there is no shard " + std::to_string(part.rank) + " of " + std::to_string(part.world) +
                              " (ranks count from 0 to world - 1); pass the rank and size of one group");
  }
  const auto share = [](std::uint64_t whole, std::uint64_t nth, int parts) {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(wide{whole} * nth / static_cast<unsigned>(parts));
  };
  const auto boundary = [&](int rank) {
    const auto nth = static_cast<std::uint64_t>(rank);
    if (part.virtual_shards == 0) return share(count, nth, part.world);
    const auto shards = static_cast<std::uint64_t>(part.virtual_shards);
    return share(count, share(shards, nth, part.world), part.virtual_shards);
  };
  return {boundary(part.rank), boundary(part.rank + 1)};
}

}  // namespace muster::inline v0
