// Detection of changes to a file on this host. Private to muster's own sources.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include <muster/core/hash.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns a value that distinguishes states of a file on this host, from size, times, inode and device. No user can
/// set a file's change time back. The value differs after a copy and on another host.
[[nodiscard]] inline std::uint64_t state_of(const struct stat& status) noexcept {
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  return digest()
      .add(number(status.st_size))
      .add(number(status.st_mtim.tv_sec))
      .add(number(status.st_mtim.tv_nsec))
      .add(number(status.st_ctim.tv_sec))
      .add(number(status.st_ctim.tv_nsec))
      .add(number(status.st_ino))
      .add(number(status.st_dev))
      .value();
}

/// Returns the state of the file that is currently at a path, or nothing if there is no file.
[[nodiscard]] inline std::optional<std::uint64_t> state_of(const std::string& path) noexcept {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return state_of(found);
}

/// Waits until a change to a file would have a later time than `changed`, at most 20 ms. The clock for file times has
/// steps of some milliseconds. Two changes to a file within a step would result in the same state.
inline void wait_for_next_tick(const struct timespec& changed) noexcept {
  constexpr long step = 1'000'000, longest = 20'000'000;  // nanoseconds
  for (long waited = 0; waited < longest; waited += step) {
    struct timespec current {};
    if (::clock_gettime(CLOCK_REALTIME_COARSE, &current) != 0) return;
    if (current.tv_sec > changed.tv_sec || (current.tv_sec == changed.tv_sec && current.tv_nsec > changed.tv_nsec))
      return;
    const struct timespec pause { 0, step };
    (void)::nanosleep(&pause, nullptr);
  }
}

}}}  // namespace muster::v0::detail
