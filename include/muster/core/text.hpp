// Operations on short texts.
#pragma once

#include <locale.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the parts between the marks: one more part than there are marks.
[[nodiscard]] inline std::vector<std::string_view> split(std::string_view text, char mark) {
  std::vector<std::string_view> words;
  for (;;) {
    const auto end = text.find(mark);
    words.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return words;
    text.remove_prefix(end + 1);
  }
}

/// Returns the parts between commas, with an optional trailing comma; nothing for an empty text.
[[nodiscard]] inline std::vector<std::string_view> listed(std::string_view text) {
  auto words = split(text, ',');
  if (words.back().empty()) words.pop_back();
  return words;
}

/// Returns make(element) for each element, joined by the mark.
template <class Make = std::identity>
[[nodiscard]] std::string joined(const auto& all, std::string_view mark, const Make& make = {}) {
  std::string text;
  std::string_view before;
  for (const auto& element : all) text.append(std::exchange(before, mark)).append(make(element));
  return text;
}

/// Returns the text in one line that moves no cursor: a space for each line break and tab of ASCII, '?' for each other
/// control character (U+0000 to U+001F, U+007F to U+009F).
[[nodiscard]] inline std::string on_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\r' || c == '\t')
      line += ' ';
    else if (byte < ' ' || c == '\x7f')
      line += '?';
    else if (byte >= 0x80 && byte <= 0x9f && line.ends_with('\xc2'))  // U+0080 to U+009F have two bytes
      line.back() = '?';
    else
      line += c;
  }
  return line;
}

/// Gives the thread the numbers of the C locale ("0.5") while it exists, whatever locale the process has set: files and
/// messages of ranks with other locales must agree.
class c_locale_scope {
 public:
  c_locale_scope() : before_(uselocale(c_locale())) {}
  ~c_locale_scope() { uselocale(before_); }
  c_locale_scope(const c_locale_scope&) = delete;
  c_locale_scope& operator=(const c_locale_scope&) = delete;

 private:
  // Never freed: threads may print until the process ends.
  static locale_t c_locale() {
    static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
    return locale;
  }

  locale_t before_;
};

/// Returns a text formatted like printf in the C locale, up to 511 characters.
[[nodiscard, gnu::format(printf, 1, 2)]] inline std::string printed(const char* format, ...) {
  const c_locale_scope numbers;
  char text[512];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

/// Returns a number as hexadecimal digits with leading zeros.
[[nodiscard]] inline std::string hex(std::uint64_t value, int digits = 16) {
  return printed("%0*llx", digits, static_cast<unsigned long long>(value));
}

/// Returns true if muster may have created the name. In the pattern '#' matches decimal digits, '%' the 16 digits of
/// `hex`, and every other character itself. Files with other names in a folder belong to the user.
[[nodiscard]] inline bool matches_name_pattern(std::string_view name, std::string_view pattern) {
  for (const char expected : pattern) {
    const bool is_hex = expected == '%';
    const auto digits = std::min(name.find_first_not_of(is_hex ? "0123456789abcdef" : "0123456789"), name.size());
    if (is_hex ? digits < 16 : expected == '#' ? digits == 0 : !name.starts_with(expected)) return false;
    name.remove_prefix(is_hex ? 16 : expected == '#' ? digits : 1);
  }
  return name.empty();
}

}}}  // namespace muster::v0::detail
