// A buffer of bytes cut into blocks, as the algorithms see it.
#pragma once

#include <cstddef>
#include <span>

#include <muster/comm/block.hpp>

namespace muster::inline v0::detail {

/// `count` elements at `data`, cut into `parts` blocks.
struct blocks {
  std::byte* data;
  std::size_t count;
  std::size_t element_size;
  int parts;

  /// Block i; i may be below 0 or beyond the last by one turn, as indices around a ring are.
  [[nodiscard]] std::span<std::byte> at(int i) const {
    const block part = block_of(count, (i + parts) % parts, parts);
    return {data + part.first * element_size, part.count * element_size};
  }

  /// Blocks [i, j), which lie behind one another.
  [[nodiscard]] std::span<std::byte> between(int i, int j) const {
    const std::size_t begin = i < parts ? block_of(count, i, parts).first : count;
    const std::size_t end = j < parts ? block_of(count, j, parts).first : count;
    return {data + begin * element_size, (end - begin) * element_size};
  }
};

/// The largest power of two that is not above n.
[[nodiscard]] constexpr int power_of_two_below(int n) noexcept {
  int power = 1;
  while (power <= n / 2) power *= 2;
  return power;
}

}  // namespace muster::inline v0::detail
