// The division of a buffer into one block per rank.
#pragma once

#include <cstddef>
#include <span>

namespace muster { inline namespace v0 {

/// A run of consecutive elements.
struct block {
  std::size_t first = 0;
  std::size_t count = 0;
  bool operator==(const block&) const = default;
};

/// Returns rank `rank`'s block of `count` elements divided among `rank_count`: from floor(rank * count / ranks) to the
/// start of the next block. The sizes of blocks differ by one element at most, and any count works.
[[nodiscard]] constexpr block block_of(std::size_t count, int rank, int rank_count) noexcept {
  const auto n = static_cast<std::size_t>(rank_count);
  // this form does not overflow
  const auto begin = [&](std::size_t r) { return r * (count / n) + r * (count % n) / n; };
  const auto r = static_cast<std::size_t>(rank);
  return {begin(r), begin(r + 1) - begin(r)};
}

namespace detail {

/// Bytes of a piece when two ranks exchange large data. Both ranks send a piece and then receive a piece: over tcp the
/// system copies one large piece faster than the same bytes in small alternating pieces. A few pieces still fit the
/// caches. A constant, because all ranks have to agree on it.
inline constexpr std::size_t exchange_piece = 524288;

/// Returns the number of pieces for that many bytes, at least one. `piece_of` returns the k-th piece.
[[nodiscard]] constexpr std::size_t pieces_of(std::size_t bytes) noexcept {
  return bytes <= exchange_piece ? 1 : (bytes - 1) / exchange_piece + 1;
}
template <class Byte>
[[nodiscard]] constexpr std::span<Byte> piece_of(std::span<Byte> buffer, std::size_t k) noexcept {
  const auto rest = buffer.subspan(k * exchange_piece);
  return rest.size() < exchange_piece ? rest : rest.first(exchange_piece);
}

/// `count` elements at `data`, divided into `block_count` blocks.
struct blocks {
  std::byte* data;
  std::size_t count;
  std::size_t element_size;
  int block_count;

  /// Returns block i. An i below 0 or beyond the last block wraps around once, for indices around a ring.
  [[nodiscard]] std::span<std::byte> at(int i) const {
    const block part = block_of(count, (i + block_count) % block_count, block_count);
    return {data + part.first * element_size, part.count * element_size};
  }

  /// Returns the blocks [i, j), which are contiguous.
  [[nodiscard]] std::span<std::byte> between(int i, int j) const {
    const std::size_t begin = i < block_count ? block_of(count, i, block_count).first : count;
    const std::size_t end = j < block_count ? block_of(count, j, block_count).first : count;
    return {data + begin * element_size, (end - begin) * element_size};
  }
};

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
