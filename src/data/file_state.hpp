// Whether a file of this host is what it was; private to muster's own sources.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>

#include <muster/core/hash.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Tells the states of a file on this host apart by size, times, inode and device: no user can set the time of a change
/// back. After a copy, and on another host, it differs.
[[nodiscard]] inline std::uint64_t state_of(const struct stat& of) noexcept {
  const auto number = [](auto value) { return static_cast<std::uint64_t>(value); };
  return digest()
      .add(number(of.st_size))
      .add(number(of.st_mtim.tv_sec))
      .add(number(of.st_mtim.tv_nsec))
      .add(number(of.st_ctim.tv_sec))
      .add(number(of.st_ctim.tv_nsec))
      .add(number(of.st_ino))
      .add(number(of.st_dev))
      .value();
}

/// The same of what lies at a path now; nothing where that is nothing.
[[nodiscard]] inline std::optional<std::uint64_t> state_of(const std::string& path) noexcept {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return std::nullopt;
  return state_of(found);
}

/// Waits until a change of a file that changed at `changed` would have another time. The clock of files has steps of
/// some milliseconds: a file may change twice within one, and its state would be the same.
inline void wait_for_next_tick(const struct timespec& changed) noexcept {
  constexpr long step = 1'000'000, longest = 20'000'000;  // nanoseconds
  for (long waited = 0; waited < longest; waited += step) {
    struct timespec now {};
    if (::clock_gettime(CLOCK_REALTIME_COARSE, &now) != 0) return;
    if (now.tv_sec > changed.tv_sec || (now.tv_sec == changed.tv_sec && now.tv_nsec > changed.tv_nsec)) return;
    const struct timespec pause { 0, step };
    (void)::nanosleep(&pause, nullptr);
  }
}

}}}  // namespace muster::v0::detail
