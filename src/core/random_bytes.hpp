// Bytes that no other process can foresee, from the system.
#pragma once

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// At most 256 bytes, which the system gives whole. Throws error where it gives none.
inline void fill_random(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size())) return;
  throw error(error_kind::other, "the system gives no random bytes (" + std::string(std::strerror(errno)) +
                                     "); check what denies this process getrandom(2)");
}

/// 256 random bits in hexadecimal digits.
[[nodiscard]] inline std::string random_token() {
  std::array<std::byte, 32> bytes;
  fill_random(bytes);
  std::string text;
  for (const std::byte one : bytes) {
    for (const unsigned shift : {4U, 0U}) text += "0123456789abcdef"[std::to_integer<unsigned>(one) >> shift & 15U];
  }
  return text;
}

}}}  // namespace muster::v0::detail
