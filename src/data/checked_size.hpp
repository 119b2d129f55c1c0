// Sizes that files claim; private to muster's own sources.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace muster::inline v0::detail {

/// first * the product of `extents`, or nothing when that does not fit into 64 bits.
inline std::optional<std::uint64_t> checked_product(std::uint64_t first, std::span<const std::uint64_t> extents) {
  for (const std::uint64_t extent : extents) {
    if (__builtin_mul_overflow(first, extent, &first)) return std::nullopt;
  }
  return first;
}

}  // namespace muster::inline v0::detail
