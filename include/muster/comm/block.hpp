// How a buffer is cut into one block a rank.
#pragma once

#include <cstddef>
#include <span>

namespace muster { inline namespace v0 {

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

namespace detail {

/// Bytes of a piece in which two ranks exchange what is large. Both send a piece and then receive one: over tcp the
/// system copies a large piece faster than as many bytes in small ones by turns. A few still fit the caches. A
/// constant, because all ranks have to agree on it.
inline constexpr std::size_t exchange_piece = 524288;

/// In how many pieces so many bytes go, one at least; and the k-th of them.
[[nodiscard]] constexpr std::size_t pieces_of(std::size_t bytes) noexcept {
  return bytes <= exchange_piece ? 1 : (bytes - 1) / exchange_piece + 1;
}
template <class Byte>
[[nodiscard]] constexpr std::span<Byte> piece_of(std::span<Byte> whole, std::size_t k) noexcept {
  const auto rest = whole.subspan(k * exchange_piece);
  return rest.size() < exchange_piece ? rest : rest.first(exchange_piece);
}

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

}  // namespace detail
}}  // namespace muster::v0
