// Base64 (RFC 4648, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::inline v0::serve {

/// Appends what the text stands for; false for what is no base64, or is padded otherwise than to groups of four.
[[nodiscard]] inline bool decode_base64(std::string_view text, std::vector<std::byte>& to) {
  if (text.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) {
    text.remove_suffix(1);
    ++padding;
  }
  std::uint32_t bits = 0;
  unsigned known = 0;
  for (const char letter : text) {
    std::uint32_t value = 0;
    if (letter >= 'A' && letter <= 'Z') {
      value = static_cast<std::uint32_t>(letter - 'A');
    } else if (letter >= 'a' && letter <= 'z') {
      value = static_cast<std::uint32_t>(letter - 'a') + 26;
    } else if (letter >= '0' && letter <= '9') {
      value = static_cast<std::uint32_t>(letter - '0') + 52;
    } else if (letter == '+' || letter == '/') {
      value = letter == '+' ? 62 : 63;
    } else {
      return false;
    }
    bits = bits << 6 | value;
    known += 6;
    if (known < 8) continue;
    known -= 8;
    to.push_back(static_cast<std::byte>(bits >> known & 0xFF));
  }
  return (bits & ((1u << known) - 1)) == 0;
}

}  // namespace muster::inline v0::serve
