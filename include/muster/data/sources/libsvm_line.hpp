// A line of LIBSVM text, and the error texts for it. Private to muster's own sources.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <muster/core/error.hpp>
#include <muster/data/label.hpp>
#include <muster/data/sources/decimal.hpp>
#include <muster/data/sources/text_format.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail::libsvm {

inline constexpr std::uint64_t largest_index = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::ptrdiff_t few_digits = 9;    // an index with so many digits is never too large
inline constexpr std::ptrdiff_t most_digits = 19;  // digits of an index, with leading zeros, that fit into 64 bits

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

/// Returns the value of a digit, or at least 10 if the character is not a digit.
inline unsigned digit_at(const char* p) { return unsigned{static_cast<unsigned char>(*p)} - '0'; }

/// Skips blanks. Tests for a digit first, like the parser of the next word, so that the compiler merges both tests.
inline const char* skip_blanks(const char* p) {
  while (digit_at(p) >= 10 && is_blank(*p)) ++p;
  return p;
}

/// Returns true if a line ends at `p`: at a newline, a carriage return before the newline, or a comment. A parsed text
/// ends with a newline, so that loops over blanks and digits stop.
inline bool ends_line(const char* p) { return *p == '\n' || *p == '#' || (*p == '\r' && p[1] == '\n'); }

inline bool ends_word(const char* p) { return is_blank(*p) || ends_line(p); }

/// A line without its end.
struct line_of_text {
  const char* begin;
  const char* end;

  bool blank() const { return std::find_if_not(begin, end, is_blank) == end; }
};

/// Returns true if a text has comments. Most files have none, and then lines need no search for comments.
inline bool has_comments(std::string_view text) { return std::memchr(text.data(), '#', text.size()) != nullptr; }

/// Removes the first line from `rest`, which must not be empty, and returns the line.
inline line_of_text split_line(std::string_view& rest, bool comments) {
  const char* const begin = rest.data();
  const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', rest.size()));
  const char* end = newline != nullptr ? newline : begin + rest.size();
  rest.remove_prefix(static_cast<std::size_t>(end - begin) + (newline != nullptr ? 1 : 0));
  if (end != begin && end[-1] == '\r') --end;
  if (!comments) return {begin, end};
  const auto* comment = static_cast<const char*>(std::memchr(begin, '#', static_cast<std::size_t>(end - begin)));
  return {begin, comment != nullptr ? comment : end};
}

/// The position of a line in a text.
struct line_place {
  const std::string& file;
  std::uint64_t number;
  std::string_view rest;  // the text from the line on
};

/// A builder of the errors about a word of a line. The argument `p` of the functions is in the word or at its start.
class parse_error_builder {
 public:
  explicit parse_error_builder(line_place at) : file_(at.file), number_(at.number), line_(split_line(at.rest, true)) {}

  [[noreturn]] void fail(const char* at, const std::string& text) const {
    throw data_error({file_, number_, static_cast<std::uint64_t>(at - line_.begin) + 1}, text);
  }

  // Returns the word that starts at `p`, in quotes.
  std::string quote(const char* p) const { return quoted({p, static_cast<std::size_t>(end_of_word(p) - p)}); }

  const char* end_of_word(const char* p) const { return std::find_if(p, line_.end, is_blank); }

  [[noreturn]] void bad_label(const char* p) const {
    const std::string_view word(p, static_cast<std::size_t>(end_of_word(p) - p));
    float value = 0;
    const auto [end, code] = parse_float(word.data(), word.data() + word.size(), value);
    if (code == std::errc() && end == word.data() + word.size() && !is_exact_label(word, value))
      fail(p, no_label(quoted(word)));
    bad_number(p, "label " + quoted(word));
  }

  // Throws the error of the index of the word at `p`. `previous` is the index before it, or 0.
  [[noreturn]] void bad_index(const char* p, std::uint64_t previous) const {
    const std::string word = quote(p);
    if (std::string_view(p, static_cast<std::size_t>(line_.end - p)).starts_with("qid:")) {
      fail(
          p,
          word + " belongs to ranking data (this reader supports classification and regression); remove the qid words");
    }
    const char* const end = std::find_if_not(p, line_.end, is_digit);
    if (std::find(p, end_of_word(p), ':') == end_of_word(p)) {
      fail(p, word + " is not a feature (a feature is index:value, without blanks); correct the line");
    }
    if (end == p || *end != ':') {
      fail(p, "bad index in " + word + " (an index is a whole number from 1 on); correct the line");
    }
    const char* leading = std::find_if(p, end, [](char c) { return c != '0'; });
    std::uint64_t index = 0;
    for (; leading != end && index <= largest_index; ++leading) {
      index = index * 10 + static_cast<std::uint64_t>(*leading - '0');
    }
    if (index > largest_index || end - p > most_digits) {
      fail(p, "index in " + word + " is too large (at most 4294967295); renumber the features");
    }
    if (index == 0) {
      fail(p, "index 0 in " + word + " (LIBSVM counts features from 1); add 1 to every index of the file");
    }
    if (index == previous) {
      fail(p, "index " + std::to_string(index) + " occurs twice, again in " + word +
                  " (a feature has one value); remove one occurrence");
    }
    fail(p, "index " + std::to_string(index) + " in " + word + " is out of order (it follows " +
                std::to_string(previous) + ", and indices ascend); sort the features of the line");
  }

  [[noreturn]] void bad_value(const char* p, std::uint64_t index) const {
    const std::string of_feature = " of feature " + std::to_string(index);
    if (p == end_of_word(p)) {
      fail(p, "no value" + of_feature + " (a feature is index:value, without blanks); correct the line");
    }
    bad_number(p, "value " + quote(p) + of_feature);
  }

 private:
  [[noreturn]] void bad_number(const char* p, const std::string& subject) const {
    const char* const end = end_of_word(p);
    float value = 0;
    const auto [ptr, code] = parse_float(p, end, value);
    if (code == std::errc::result_out_of_range && ptr == end) {
      fail(p, subject + " is too large (a float32 reaches 3.4e38); scale it or correct the line");
    }
    const char* const letters = p + (p != end && (*p == '-' || *p == '+') ? 1 : 0);
    const auto [behind, parsed] = std::from_chars(letters, end, value);
    if (parsed == std::errc() && behind == end && !std::isfinite(value)) {
      fail(p, subject + " is not finite (training needs finite numbers); remove it or correct the line");
    }
    fail(p, subject + " is not a number (it is a decimal such as -1, 0.25 or 1e-3); correct the line");
  }

  const std::string& file_;
  std::uint64_t number_;
  line_of_text line_;
};

}}}}  // namespace muster::v0::data::detail::libsvm

#include <muster/core/detail/exact_end.hpp>
