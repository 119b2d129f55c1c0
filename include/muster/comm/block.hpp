// How a buffer is cut into one block a rank.
#pragma once

#include <cstddef>

namespace muster::inline v0 {

/// A run of elements.
struct block {
  std::size_t first = 0;
  std::size_t count = 0;
  bool operator==(const block&) const = default;
};

/// Rank `rank`'s block of `count` elements cut among `ranks`: from floor(rank * count / ranks) to where the next
/// begins, so that blocks differ by one element at the most and any count will do.
[[nodiscard]] constexpr block block_of(std::size_t count, int rank, int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  const auto begin = [&](std::size_t r) { return r * (count / n) + r * (count % n) / n; };  // without overflow
  const auto r = static_cast<std::size_t>(rank);
  return {begin(r), begin(r + 1) - begin(r)};
}

}  // namespace muster::inline v0
