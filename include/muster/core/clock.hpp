// The clock of all deadlines and measurements.
#pragma once

#include <chrono>

namespace muster { inline namespace v0 {

/// The monotonic clock; never jumps when the time of the system is set.
using clock = std::chrono::steady_clock;

/// A span of time in seconds, the unit of every timeout in the interface. `std::chrono` literals convert to it.
using seconds = std::chrono::duration<double>;

/// Returns the time point `after` from now. A span that is too long for the clock means never.
[[nodiscard]] inline clock::time_point deadline_after(seconds after) noexcept {
  constexpr seconds never{3.0e8};  // ten years, far below the range of the clock's 64 bits
  return clock::now() + std::chrono::duration_cast<clock::duration>(after < never ? after : never);
}

/// Returns the seconds since `start`.
[[nodiscard]] inline double seconds_since(clock::time_point start) noexcept {
  return seconds(clock::now() - start).count();
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
