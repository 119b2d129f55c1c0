#include <muster/core/scheduling.hpp>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <thread>

#include "catch.hpp"

namespace {

/// The schedule of the calling thread according to the system.
struct schedule {
  std::uint32_t policy = 0;
  std::uint64_t slice = 0;  // nanoseconds; 0 before Linux 6.12
  int nice = 0;
};

schedule of_this_thread() {
  std::array<std::uint64_t, 6> words{};  // struct sched_attr
  REQUIRE(::syscall(SYS_sched_getattr, 0, words.data(), sizeof words, 0) == 0);
  return {static_cast<std::uint32_t>(words[0] >> 32), words[3],
          ::getpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()))};
}

/// Returns the schedules of a new thread before and after `change`.
template <class Change>
std::array<schedule, 2> around(Change change) {
  std::array<schedule, 2> schedules;
  std::thread([&] {
    schedules[0] = of_this_thread();
    change();
    schedules[1] = of_this_thread();
  }).join();
  return schedules;
}

}  // namespace

TEST_CASE("a thread of short slices keeps its policy and its priority") {
  const auto [before, after] = around([] { muster::detail::shorten_slices_of_this_thread(); });
  CHECK(after.policy == before.policy);
  CHECK(after.nice == before.nice);
  if (before.slice == 0) {
    WARN("SKIPPED: this system has no slices that a thread can choose (before Linux 6.12)");
    return;
  }
  CHECK(before.slice > 100'000);  // the setting was not inherited
  CHECK(after.slice == 100'000);
}

TEST_CASE("a thread of low priority keeps its policy") {
  const auto [before, after] = around([] { muster::detail::lower_priority_of_this_thread(); });
  CHECK(after.policy == before.policy);
  CHECK(after.nice == std::max(before.nice, 10));
}
