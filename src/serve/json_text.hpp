// Appends values as JSON text.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace serve {

/// Appends a string with quotes. Invalid UTF-8 is copied unchanged.
inline void append_string(std::string& output, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  output += '"';
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      output += '\\';
      output += letter;
    } else if (code < 0x20) {
      output += "\\u00";
      output += digits[code >> 4];
      output += digits[code & 15];
    } else {
      output += letter;
    }
  }
  output += '"';
}

/// Appends the shortest text that parses to this number, or null for a number that is not finite (JSON has no such
/// numbers).
template <class T>
void append_number(std::string& output, T value) {
  if constexpr (std::same_as<T, bool>) {
    output += value ? "true" : "false";
  } else {
    if constexpr (std::floating_point<T>) {
      if (!std::isfinite(value)) {
        output += "null";
        return;
      }
    }
    char text[32];
    output.append(text, std::to_chars(text, text + sizeof text, value).ptr);
  }
}

}}}  // namespace muster::v0::serve
