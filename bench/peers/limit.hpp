// Functions that memory_limit, loopback_limit and switch_limit share. Their processes measure limits of the machine.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>
#include <vector>

#include "../turns.hpp"

namespace bench {

inline constexpr int limit_ranks = 2;  // Number of ranks in all limits except switch_limit.
inline constexpr int most_limit_ranks = 64;
inline constexpr std::size_t limit_iterations = 300;

[[noreturn]] inline void fail_with_errno(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

/// Allocates memory that all processes share, in pages of the same kind as the shared segments of the shm transport.
inline void* share_with_children(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_with_errno("mmap");
  return memory;
}

/// A barrier in shared memory.
class meeting {
 public:
  /// Constructs a barrier for `ranks` processes. A waiting process yields its core after 10,000 tests of the barrier,
  /// or at once if `oversubscribed` (more processes than cores).
  meeting(int ranks, bool oversubscribed) : ranks_(ranks), patience_(oversubscribed ? 0 : 10'000) {}

  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  void meet() {
    const int before = meetings_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1) + 1 == ranks_) {
      arrived_.store(0, std::memory_order_relaxed);
      meetings_.store(before + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; meetings_.load(std::memory_order_acquire) == before; ++spins) {
      if (spins >= patience_) sched_yield();
    }
  }

  /// Returns the seconds for each of `count.times` calls at the slowest process, timed as calls of `operation`.
  /// Collective.
  template <class Call>
  std::vector<double> times_of(op operation, int rank, repeats count, Call call) {
    const auto stamps = call_stamps(
        operation, {}, count, [&] { meet(); }, call);
    std::copy(stamps.begin(), stamps.end(), stamps_[static_cast<std::size_t>(rank)].begin());
    meet();
    std::vector<std::int64_t> slowest(stamps.size());
    for (std::size_t i = 0; i < stamps.size(); ++i) {
      slowest[i] = stamps_[0][i];
      for (int r = 1; r < ranks_; ++r) slowest[i] = std::max(slowest[i], stamps_[static_cast<std::size_t>(r)][i]);
    }
    meet();  // All processes finish before the next stamps are written.
    return seconds_of(slowest);
  }

 private:
  int ranks_;
  int patience_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> meetings_{0};
  std::array<std::array<std::int64_t, 2 * limit_iterations>, most_limit_ranks> stamps_{};
};

[[nodiscard]] inline int allowed_cores() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
}

/// Binds this process to the rank-th core that this program may use. If there are too few cores, processes share them.
inline void pin_to_core(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != rank % CPU_COUNT(&allowed)) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

/// The main function of a limit. Starts the processes and calls `take(turn, barrier, rank)` for every turn in each
/// process. `take` returns the seconds for each call. Memory that `take` needs must be allocated before, shared by all
/// processes.
template <class Take>
int run_limit(int argc, char** argv, const char* name, int ranks, Take take) {
  const pid_t parent = getpid();
  int rank = 0;
  std::vector<pid_t> children;
  try {
    auto& barrier = *new (share_with_children(sizeof(meeting))) meeting(ranks, ranks > allowed_cores());
    while (rank == 0 && static_cast<int>(children.size()) + 1 < ranks) {
      const pid_t child = fork();
      if (child < 0) fail_with_errno("fork");
      if (child != 0) {
        children.push_back(child);
        continue;
      }
      rank = static_cast<int>(children.size()) + 1;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) return 1;  // The parent ended before the call of prctl.
    }
    pin_to_core(rank);
    const std::string names[] = {name};
    if (rank == 0) print_ready(names, "");
    const auto folder = folder_of_turns(argc, argv);
    const op once[] = {op::allreduce};
    turns all = folder ? turns(*folder, rank) : turns(argc, argv, once);
    while (const auto turn = all.next()) {
      const auto times = take(*turn, barrier, rank);
      if (rank == 0) print_result(*turn, times);
    }
  } catch (const std::exception& failure) {
    if (rank == 0) std::fprintf(stderr, "%s: error: %s\n", name, failure.what());
    return 1;
  }
  if (rank != 0) return 0;
  return std::all_of(children.begin(), children.end(),
                     [](pid_t child) {
                       int status = 0;
                       return waitpid(child, &status, 0) == child && status == 0;
                     })
             ? 0
             : 1;
}

}  // namespace bench
