// Values as JSON.
#pragma once

#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace serve {

/// With its quotes. What is no UTF-8 stays as it is.
inline void append_string(std::string& to, std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  to += '"';
  for (const char letter : text) {
    const auto code = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      to += '\\';
      to += letter;
    } else if (code < 0x20) {
      to += "\\u00";
      to += digits[code >> 4];
      to += digits[code & 15];
    } else {
      to += letter;
    }
  }
  to += '"';
}

/// The shortest text that is read as this number; null for what is not finite, which JSON does not have.
template <class T>
void append_number(std::string& to, T value) {
  if constexpr (std::same_as<T, bool>) {
    to += value ? "true" : "false";
  } else {
    if constexpr (std::floating_point<T>) {
      if (!std::isfinite(value)) {
        to += "null";
        return;
      }
    }
    char text[32];
    to.append(text, std::to_chars(text, text + sizeof text, value).ptr);
  }
}

}}}  // namespace muster::v0::serve
