// The division of a buffer into one block per rank.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

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
  /// first element of each block, and `count` at the end; null: the sizes differ by one element at most, see `block_of`
  const std::size_t* offsets = nullptr;

  /// Returns the elements of block i, from 0 to `block_count` - 1.
  [[nodiscard]] block elements(int i) const {
    if (offsets == nullptr) return block_of(count, i, block_count);
    return {offsets[i], offsets[i + 1] - offsets[i]};
  }

  /// Returns block i. An i below 0 or beyond the last block wraps around once, for indices around a ring.
  [[nodiscard]] std::span<std::byte> at(int i) const {
    const block part = elements((i + block_count) % block_count);
    return {data + part.first * element_size, part.count * element_size};
  }

  /// Returns the blocks [i, j), which are contiguous.
  [[nodiscard]] std::span<std::byte> between(int i, int j) const {
    const std::size_t begin = i < block_count ? elements(i).first : count;
    const std::size_t end = j < block_count ? elements(j).first : count;
    return {data + begin * element_size, (end - begin) * element_size};
  }
};

/// A buffer with a piece for each rank, in the order of ranks: equal pieces of `piece_bytes` bytes, or pieces between
/// `offsets`, in elements of `element_size` bytes.
struct rank_pieces {
  std::byte* data;
  std::size_t piece_bytes;
  const std::size_t* offsets = nullptr;
  std::size_t element_size = 1;

  [[nodiscard]] std::span<std::byte> at(int rank) const {
    if (offsets == nullptr) return {data + static_cast<std::size_t>(rank) * piece_bytes, piece_bytes};
    return {data + offsets[rank] * element_size, (offsets[rank + 1] - offsets[rank]) * element_size};
  }
};

/// The division of a call's buffers into uneven pieces, in elements. Offsets are the first element of each rank's piece
/// and, at the end, the number of elements; empty for a buffer that is not divided at this rank.
struct uneven_pieces {
  std::vector<std::size_t> in;   ///< offsets in the input
  std::vector<std::size_t> out;  ///< offsets in the output
  std::size_t own = 0;           ///< elements of this rank's buffer that is not divided
  std::size_t largest = 0;       ///< elements of the largest piece
  /// the buffers of an allreduce of several buffers; empty for other calls
  std::vector<std::span<std::byte>> buffers{};

  /// Returns the offsets in the buffer that every rank divides alike: the output of an allgather, the input of a
  /// reduce_scatter.
  [[nodiscard]] const std::size_t* blocks() const noexcept { return out.empty() ? in.data() : out.data(); }
};

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
