// Random words of a codec: a function of the draw and of an index, so that loops over indices can be vectorised and any
// element can be computed separately.
#pragma once

#include <cstdint>

#include <muster/core/hash.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A function that returns 32 random bits for each 32-bit index.
struct draw_key {
  std::uint32_t before;
  std::uint32_t between;

  explicit draw_key(std::uint64_t draw) noexcept {
    const std::uint64_t word = mix(draw + 0x9e3779b97f4a7c15ULL);
    before = static_cast<std::uint32_t>(word);
    between = static_cast<std::uint32_t>(word >> 32);
  }

  /// Applies the finaliser of MurmurHash3 (https://github.com/aappleby/smhasher), with half of the key inserted in its
  /// middle.
  [[nodiscard]] std::uint32_t operator()(std::uint32_t index) const noexcept {
    std::uint32_t h = index ^ before;
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h = (h ^ h >> 13) + between;
    h *= 0xc2b2ae35u;
    return h ^ h >> 16;
  }
};

}}}  // namespace muster::v0::detail
