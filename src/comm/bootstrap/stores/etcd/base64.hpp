// Bytes as letters (RFC 4648, section 4), as JSON carries them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster::inline v0::detail {

inline constexpr std::string_view base64_letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

[[nodiscard]] inline std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = 0; i < 3; ++i)
      three = three << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i)
      text += at + i <= bytes.size() ? base64_letters[three >> (18 - 6 * i) & 63U] : '=';
  }
  return text;
}

/// Ends at the first character that is none of them.
[[nodiscard]] inline std::string from_base64(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3);
  std::uint32_t kept = 0;
  int bits = 0;
  for (const char c : text) {
    const auto value = base64_letters.find(c);
    if (value == std::string_view::npos) break;
    kept = kept << 6 | static_cast<std::uint32_t>(value);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(kept >> bits & 255U);
  }
  return bytes;
}

}  // namespace muster::inline v0::detail
