// What readers of text share: looking for bytes at the speed of memory, pieces for threads, surveys; private to
// muster's own sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include "../parallel.hpp"

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

/// How long a first piece of the text is: of about the wanted size, and up to behind a newline.
inline std::size_t first_lines(std::string_view text, std::size_t piece_bytes) {
  if (text.size() <= piece_bytes) return text.size();
  return std::min(text.find('\n', piece_bytes - 1), text.size() - 1) + 1;
}

/// Cuts the text into pieces, each as long as first(what is left) says.
template <class First>
std::vector<std::string_view> cut_text(std::string_view text, const First& first) {
  std::vector<std::string_view> pieces;
  for (; !text.empty(); text.remove_prefix(pieces.back().size())) pieces.push_back(text.substr(0, first(text)));
  return pieces;
}

/// What a piece of text holds, as it is counted before it is parsed.
struct text_survey {
  std::uint64_t lines = 0;
  std::uint64_t rows = 0;
  std::uint64_t entries = 0;
  std::uint64_t largest = 0;  // index, as written
  bool quotes = false;        // whether rows may hold newlines

  text_survey& operator+=(const text_survey& other) {
    lines += other.lines;
    rows += other.rows;
    entries += other.entries;
    largest = std::max(largest, other.largest);
    quotes = quotes || other.quotes;
    return *this;
  }
};

/// look_over(piece number) of all pieces, on several threads; leaves in `before` what comes before each piece and
/// returns what all of them hold.
template <class LookOver>
text_survey look_over_pieces(std::size_t pieces, int threads, std::vector<text_survey>& before, text_survey start,
                             const LookOver& look_over) {
  before.resize(pieces);
  parallel_for(pieces, threads, [&](std::size_t i) { before[i] = look_over(i); });
  for (text_survey& piece : before) {
    const text_survey sum = start;
    start += piece;
    piece = sum;
  }
  return start;
}

/// Memory for what was surveyed.
inline dataset_builder make_builder(std::string name, const std::string& file, const text_survey& total,
                                    std::size_t features, bool dense) {
  try {
    return dense ? dataset_builder::dense(std::move(name), total.rows, features)
                 : dataset_builder::sparse(std::move(name), total.rows, features, total.entries);
  } catch (const std::bad_alloc&) {
    throw data_error({file}, "does not fit into memory (" + std::to_string(total.rows) + " samples of " +
                                 std::to_string(features) + " features, " + (dense ? "dense" : "sparse") + "); " +
                                 (dense ? "read it with the sparse layout or split it" : "split it"));
  }
}

/// A word in quotes, cut if it is long, with escapes for what does not print.
inline std::string quoted(std::string_view word) {
  constexpr std::size_t most = 40;
  constexpr char hex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : word.substr(0, most)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      text += c;
    } else {
      text.append("\\x").append(1, hex[byte >> 4]).append(1, hex[byte & 15]);
    }
  }
  return text + (word.size() > most ? "...'" : "'");
}

}  // namespace muster::inline v0::detail
