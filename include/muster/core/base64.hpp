// Base64 (RFC 4648, section 4), for binary data in JSON.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace detail {

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

/// Decodes base64. Returns nothing for an invalid text, or for a padding that does not complete groups of four.
[[nodiscard]] inline std::optional<std::string> from_base64(std::string_view text) {
  static constexpr std::uint8_t no_letter = 64;
  static constexpr auto values = [] {
    std::array<std::uint8_t, 256> table{};
    table.fill(no_letter);
    for (std::uint8_t i = 0; i < 64; ++i) table[static_cast<unsigned char>(base64_letters[i])] = i;
    return table;
  }();
  if (text.size() % 4 != 0) return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 2);
  std::uint32_t buffered = 0;
  unsigned bits = 0;
  for (const char letter : text) {
    const std::uint8_t value = values[static_cast<unsigned char>(letter)];
    if (value == no_letter) return std::nullopt;
    buffered = buffered << 6 | value;
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(buffered >> bits & 255U);
  }
  if ((buffered & ((1U << bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

}}}  // namespace muster::v0::detail
