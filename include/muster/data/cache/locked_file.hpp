// Functions for files that several processes write. Private to muster's own sources.
#pragma once

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Waits until no other process has the file locked, and locks it. The kernel releases the lock when the file is closed
/// or the process ends. Returns false, with errno set, on failure.
inline bool lock_file(int file) noexcept {
  while (::flock(file, LOCK_EX) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

/// Writes all of `bytes` at offset `at` of the file. Returns false, with errno set, on failure.
inline bool write_at(int file, std::span<const std::byte> bytes, std::uint64_t at) noexcept {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at += static_cast<std::uint64_t>(written);
  }
  return true;
}

}}}}  // namespace muster::v0::data::detail
