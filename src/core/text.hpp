// Short texts that the library reads and writes.
#pragma once

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// What is between the marks: one more word than there are marks.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> words;
  for (;;) {
    const auto end = text.find(mark);
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

/// What is between commas, of which one may stand at the end; of an empty text nothing.
[[nodiscard]] inline std::vector<std::string_view> listed(std::string_view text) {
  auto words = split(text, ',');
  if (words.back().empty()) words.pop_back();
  return words;
}

/// What is made of each, with a mark between two.
template <class Make = std::identity>
[[nodiscard]] std::string joined(const auto& all, std::string_view mark, const Make& make = {}) {
  std::string text;
  for (const auto& one : all) text.append(text.empty() ? "" : mark).append(make(one));
  return text;
}

/// What printf would print, up to 255 characters.
[[nodiscard, gnu::format(printf, 1, 2)]] inline std::string printed(const char* format, ...) {
  char text[256];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

/// A number in hexadecimal digits, with zeros before it.
[[nodiscard]] inline std::string hex(std::uint64_t number, int digits = 16) {
  return printed("%0*llx", digits, static_cast<unsigned long long>(number));
}

/// Whether a name is as muster makes it: in the pattern '#' stands for decimal digits, '%' for the 16 of `hex`, and
/// every other character for itself. Files of other names in a folder are the user's.
[[nodiscard]] inline bool is_made_name(std::string_view name, std::string_view pattern) {
  for (const char expected : pattern) {
    const bool is_hex = expected == '%';
    const auto digits = std::min(name.find_first_not_of(is_hex ? "0123456789abcdef" : "0123456789"), name.size());
    if (is_hex ? digits < 16 : expected == '#' ? digits == 0 : !name.starts_with(expected)) return false;
    name.remove_prefix(is_hex ? 16 : expected == '#' ? digits : 1);
  }
  return name.empty();
}

}}}  // namespace muster::v0::detail
