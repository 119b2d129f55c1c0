// The division of a global batch among the ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The proportions of the ranks' parts, indexed by rank. At least one weight is not 0. Null: equal parts.
using rank_weights = std::shared_ptr<const std::vector<std::uint32_t>>;

/// A rank's part of every batch: the `rank`-th of `world` parts. It refers to no group, so that the data library does
/// not depend on comm.
struct batch_shard {
  int rank = 0;
  int world = 1;
  /// Number of parts into which the batch is divided, the same for every world. Each rank has whole parts. 0: `world`
  /// parts.
  int virtual_shards = 0;
  rank_weights weights{};  ///< the same at all ranks in a step

  friend bool operator==(const batch_shard&, const batch_shard&) = default;
};

/// The shards that a rank has, for data in shards. A shard need not be present at every rank.
struct held_shards {
  std::vector<std::string> names{};  ///< the shards' names, the same at every rank; empty: the data are not in shards
  std::vector<std::uint8_t> available{};  ///< for each shard, 1 if this rank can read the shard, else 0
  std::uint64_t weight = 1;               ///< this rank's proportion for shards that several ranks have; below 2^31

  friend bool operator==(const held_shards&, const held_shards&) = default;
};

/// The half-open range [first, last).
struct index_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] constexpr std::uint64_t size() const noexcept { return last - first; }
  friend bool operator==(const index_range&, const index_range&) = default;
};

/// Returns the part of [0, count) that belongs to `shard`: [rank * count / world, (rank + 1) * count / world), rounded
/// down. The ranks' parts are disjoint, in rank order, and cover the whole range. Their sizes differ by at most
/// one, and a part may be empty. With weights the sizes are in proportion to the weights. With virtual shards, [0,
/// virtual_shards) is divided in this way, and a rank's part consists of its virtual shards. Throws configuration_error
/// unless 0 <= rank < world, and if the number of weights differs from `world`.
[[nodiscard]] inline index_range part_of(std::uint64_t count, batch_shard shard) {
  if (shard.rank < 0 || shard.rank >= shard.world) {
    throw configuration_error("there is no shard " + std::to_string(shard.rank) + " of " + std::to_string(shard.world) +
                              " (ranks count from 0 to world - 1); pass the rank and the size of the same group");
  }
  if (shard.weights && shard.weights->size() != static_cast<std::size_t>(shard.world)) {
    throw configuration_error("a batch cannot be divided by " + std::to_string(shard.weights->size()) +
                              " weights (there are " + std::to_string(shard.world) +
                              " ranks); give every rank a weight");
  }
  const auto share = [](std::uint64_t total, std::uint64_t nth, std::uint64_t parts) {
    __extension__ using wide = unsigned __int128;
    return static_cast<std::uint64_t>(wide{total} * nth / parts);
  };
  const auto before = [&](int rank) {  // total weight of the ranks below `rank`
    if (!shard.weights) return static_cast<std::uint64_t>(rank);
    std::uint64_t found = 0;
    for (int r = 0; r < rank; ++r) found += (*shard.weights)[static_cast<std::size_t>(r)];
    return found;
  };
  const std::uint64_t all = before(shard.world);
  const auto boundary = [&](int rank) {
    if (shard.virtual_shards == 0) return share(count, before(rank), all);
    const auto shards = static_cast<std::uint64_t>(shard.virtual_shards);
    return share(count, share(shards, before(rank), all), shards);
  };
  return {boundary(shard.rank), boundary(shard.rank + 1)};
}

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::batch_shard;
using data::held_shards;
using data::index_range;
using data::part_of;
using data::rank_weights;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
