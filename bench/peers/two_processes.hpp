// Two processes that show what the machine can do at all: what memory_limit and loopback_limit have in common.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "../turns.hpp"

namespace bench {

inline constexpr int limit_ranks = 2;
inline constexpr std::size_t limit_iterations = 300;

[[noreturn]] inline void fail_with_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Memory of both processes, in pages as the shared segments of the shm transport are.
inline void* share_with_child(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_with_errno("mmap");
  return memory;
}

/// Where the two meet, in memory that they share.
class meeting {
 public:
  void meet() {
    const int before = meetings_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1) + 1 == limit_ranks) {
      arrived_.store(0, std::memory_order_relaxed);
      meetings_.store(before + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; meetings_.load(std::memory_order_acquire) == before; ++spins) {
      if (spins > 10'000) sched_yield();
    }
  }

  /// Seconds of each of `iterations` calls at the slower of the two, timed as calls of `what` are; both call it.
  template <class Call>
  std::vector<double> times_of(op what, int rank, int iterations, Call call) {
    const auto stamps = call_stamps(
        what, iterations, [&] { meet(); }, call);
    std::copy(stamps.begin(), stamps.end(), stamps_[static_cast<std::size_t>(rank)].begin());
    meet();
    std::vector<std::int64_t> slowest(stamps.size());
    for (std::size_t i = 0; i < stamps.size(); ++i) slowest[i] = std::max(stamps_[0][i], stamps_[1][i]);
    meet();  // before the next are written
    return seconds_of(slowest);
  }

 private:
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> meetings_{0};
  std::array<std::array<std::int64_t, 2 * limit_iterations>, limit_ranks> stamps_{};
};

/// Each process to a core of its own, the rank-th that this program may use.
inline void pin_to_core(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < limit_ranks) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != rank) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

/// The main function of a limit: two processes, `take(turn, place, rank)` for every turn in both, whose result is the
/// seconds of each call. What `take` needs it made before, in memory that both have.
template <class Take>
int run_limit(int argc, char** argv, const char* name, Take take) {
  const pid_t parent = getpid();
  int rank = 0;
  pid_t child = 0;
  try {
    auto& place = *new (share_with_child(sizeof(meeting))) meeting;
    child = fork();
    if (child < 0) fail_with_errno("fork");
    rank = child == 0 ? 1 : 0;
    if (rank == 1) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) return 1;  // it was gone before that
    }
    pin_to_core(rank);
    const std::string who[] = {name};
    if (rank == 0) say_ready(who, "");
    const auto folder = folder_of_turns(argc, argv);
    const op once[] = {op::allreduce};
    turns all = folder ? turns(*folder, rank) : turns(argc, argv, once);
    while (const auto turn = all.next()) {
      const auto times = take(*turn, place, rank);
      if (rank == 0) answer(*turn, times);
    }
  } catch (const std::exception& failure) {
    if (rank == 0) std::fprintf(stderr, "%s: error: %s\n", name, failure.what());
    return 1;
  }
  if (rank == 1) return 0;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace bench
