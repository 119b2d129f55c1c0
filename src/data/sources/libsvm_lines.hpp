// The lines of LIBSVM text and what is said about wrong ones; private to the reader.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <muster/core/error.hpp>
#include "decimal.hpp"
#include "scan.hpp"

namespace muster::inline v0::detail::libsvm {

inline constexpr std::uint64_t largest_index = std::numeric_limits<std::uint32_t>::max();

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

inline const char* skip_blanks(const char* p, const char* end) {
  while (p != end && is_blank(*p)) ++p;
  return p;
}

/// What a line says: without its newline, a carriage return before that, and a comment.
struct line_of_text {
  const char* begin;
  const char* end;

  bool blank() const { return skip_blanks(begin, end) == end; }
};

/// Most files have no comments, and are not searched for them line by line.
inline bool has_comments(std::string_view text) { return std::memchr(text.data(), '#', text.size()) != nullptr; }

/// Takes the first line off `rest`, which is not empty.
inline line_of_text take_line(std::string_view& rest, bool comments) {
  const char* const begin = rest.data();
  const auto* newline = static_cast<const char*>(std::memchr(begin, '\n', rest.size()));
  const char* end = newline != nullptr ? newline : begin + rest.size();
  rest.remove_prefix(static_cast<std::size_t>(end - begin) + (newline != nullptr ? 1 : 0));
  if (end != begin && end[-1] == '\r') --end;
  if (!comments) return {begin, end};
  const auto* comment = static_cast<const char*>(std::memchr(begin, '#', static_cast<std::size_t>(end - begin)));
  return {begin, comment != nullptr ? comment : end};
}

/// The words of an error about the word that `p` is in or at the start of.
class complaint {
 public:
  complaint(const std::string& file, std::uint64_t number, line_of_text line)
      : file_(file), number_(number), line_(line) {}

  [[noreturn]] void fail(const char* at, const std::string& text) const {
    throw data_error({file_, number_, static_cast<std::uint64_t>(at - line_.begin) + 1}, text);
  }

  // The word that starts at `p`, in quotes.
  std::string quote(const char* p) const { return quoted({p, static_cast<std::size_t>(end_of_word(p) - p)}); }

  const char* end_of_word(const char* p) const { return std::find_if(p, line_.end, is_blank); }

  [[noreturn]] void bad_label(const char* p) const { bad_number(p, "label " + quote(p), "correct the line"); }

  // Something is wrong with the index of the word at `p`; `previous` is the index before it, or 0.
  [[noreturn]] void bad_index(const char* p, std::uint64_t previous) const {
    const std::string word = quote(p);
    if (std::string_view(p, static_cast<std::size_t>(line_.end - p)).starts_with("qid:")) {
      fail(p,
           word + " belongs to ranking data (this reader knows classification and regression); remove the qid words");
    }
    const char* const end = std::find_if_not(p, line_.end, detail::is_digit);
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
    if (index > largest_index) {
      fail(p, "index in " + word + " is too large (at most 4294967295); renumber the features");
    }
    if (index == 0) {
      fail(p, "index 0 in " + word + " (LIBSVM counts features from 1); add 1 to every index of the file");
    }
    if (index == previous) {
      fail(p, "index " + std::to_string(index) + " is there twice, again in " + word +
                  " (a feature has one value); remove one of them");
    }
    fail(p, "index " + std::to_string(index) + " in " + word + " is out of order (it follows " +
                std::to_string(previous) + ", and indices ascend); sort the features of the line");
  }

  [[noreturn]] void bad_value(const char* p, std::uint64_t index) const {
    const std::string of = " of feature " + std::to_string(index);
    if (p == end_of_word(p)) {
      fail(p, "no value" + of + " (a feature is index:value, without blanks); correct the line");
    }
    bad_number(p, "value " + quote(p) + of, "correct the line");
  }

 private:
  [[noreturn]] void bad_number(const char* p, const std::string& what, const std::string& suggestion) const {
    const char* const end = end_of_word(p);
    float value = 0;
    const auto [ptr, code] = detail::parse_float(p, end, value);
    if (code == std::errc::result_out_of_range && ptr == end) {
      fail(p, what + " is too large (a float32 reaches 3.4e38); scale it or " + suggestion);
    }
    const char* const letters = p + (p != end && (*p == '-' || *p == '+') ? 1 : 0);
    const auto [behind, known] = std::from_chars(letters, end, value);
    if (known == std::errc() && behind == end && !std::isfinite(value)) {
      fail(p, what + " is not finite (training needs finite numbers); remove it or " + suggestion);
    }
    fail(p, what + " is not a number (it is a decimal such as -1, 0.25 or 1e-3); " + suggestion);
  }

  const std::string& file_;
  std::uint64_t number_;
  line_of_text line_;
};

}  // namespace muster::inline v0::detail::libsvm
