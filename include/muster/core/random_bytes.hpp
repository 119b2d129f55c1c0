// Random bytes from the system that other processes cannot predict.
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

/// Fills at most 256 bytes, which the system provides in a single call. Throws error where the system provides none.
inline void fill_random(std::span<std::byte> bytes) {
  if (::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size())) return;
  throw error(error_kind::other, "the system provides no random bytes (" + std::string(std::strerror(errno)) +
                                     "); check why getrandom(2) fails for this process");
}

/// Returns 256 random bits as hexadecimal digits.
[[nodiscard]] inline std::string random_token() {
  std::array<std::byte, 32> bytes;
  fill_random(bytes);
  std::string text;
  for (const std::byte byte : bytes) {
    for (const unsigned shift : {4U, 0U}) text += "0123456789abcdef"[std::to_integer<unsigned>(byte) >> shift & 15U];
  }
  return text;
}

}}}  // namespace muster::v0::detail
