// Looking for bytes in text at the speed of memory; private to muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::inline v0::detail {

/// How often `byte` is in `text`. In a form that compilers turn into vector instructions: counters of one byte, emptied
/// before they overflow.
inline std::uint64_t count_byte(std::string_view text, char byte) noexcept {
  constexpr std::size_t lanes = 32;
  std::uint64_t count = 0;
  const char* p = text.data();
  std::size_t left = text.size();
  while (left >= lanes) {
    std::array<unsigned char, lanes> found{};
    const std::size_t rounds = std::min<std::size_t>(left / lanes, 255);
    for (std::size_t round = 0; round < rounds; ++round, p += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        found[lane] = static_cast<unsigned char>(found[lane] + (p[lane] == byte ? 1 : 0));
      }
    }
    for (const unsigned char lane : found) count += lane;
    left -= rounds * lanes;
  }
  return count + static_cast<std::uint64_t>(std::count(p, p + left, byte));
}

/// Text is parsed in pieces of about this size: many for the threads, each long beside what starting it takes.
inline constexpr std::size_t text_piece_bytes = std::size_t{1} << 20;

/// Cuts the text behind newlines, into pieces of about the wanted size.
inline std::vector<std::string_view> cut_lines(std::string_view text, std::size_t piece_bytes) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    std::size_t size = text.size();
    if (size > piece_bytes) size = std::min(text.find('\n', piece_bytes - 1), size - 1) + 1;
    pieces.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return pieces;
}

}  // namespace muster::inline v0::detail
