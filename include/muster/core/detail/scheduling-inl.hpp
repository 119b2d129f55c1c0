#pragma once

#include <muster/core/scheduling.hpp>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
// On a core that a rank uses for computation, a background thread gets a tenth of the time: a step takes as long as
// without the thread. On an idle core the thread uses as much time as it can.
inline constexpr int background_nice_value = 10;
inline constexpr std::uint64_t shortest_slice = 100'000;  // nanoseconds, Linux's minimum

/// Linux's struct sched_attr in its first version. glibc 2.36 does not declare the structure, and the kernel's header
/// cannot be included together with <sched.h>.
struct scheduling_attributes {
  std::uint32_t size = sizeof(scheduling_attributes);
  std::uint32_t policy = 0;
  std::uint64_t flags = 0;
  std::int32_t nice = 0;
  std::uint32_t priority = 0;
  std::uint64_t runtime = 0;  // for SCHED_OTHER: the slice
  std::uint64_t deadline = 0;
  std::uint64_t period = 0;
};

inline void shorten_slices() noexcept {
  constexpr std::uint32_t other = 0;  // SCHED_OTHER
  scheduling_attributes found;
  if (::syscall(SYS_sched_getattr, 0, &found, sizeof found, 0) != 0) return;
  if (found.policy != other || found.runtime <= shortest_slice) return;
  found.runtime = shortest_slice;
  (void)::syscall(SYS_sched_setattr, 0, &found, 0);
}

MUSTER_INLINE void lower_priority_of_this_thread() noexcept {
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()),
                      background_nice_value);  // on Linux the call applies to a thread
}

MUSTER_INLINE void shorten_slices_of_this_thread() noexcept {
  thread_local bool is_done = false;
  if (is_done) return;
  is_done = true;
  shorten_slices();
}

}}}  // namespace muster::v0::detail
