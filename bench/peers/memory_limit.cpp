// How fast two processes can add at all: each takes its half of two arrays that both have mapped, and writes every sum
// into both of them. That is two reads and two writes of memory an element, what an allreduce of two ranks in place has
// to do where each can reach the other's array, and nothing else.
//   build/release/bench/peers/memory_limit [BYTES...]
// Prints lines of JSON as peers/mpi_collectives does, and takes --turns=FOLDER as it does.
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>

#include "../turns.hpp"

namespace {

constexpr int ranks = 2;
constexpr std::size_t most_iterations = 300;

/// What the two processes share beside the arrays.
struct meeting {
  alignas(64) std::atomic<int> arrived{0};
  alignas(64) std::atomic<int> meetings{0};
  std::array<std::array<std::int64_t, 2 * most_iterations>, ranks> stamps{};
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

/// Memory of both processes, in pages as the shared segments of the shm transport are.
void* share(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail("memory_limit: mmap");
  return memory;
}

/// Each process to a core of its own, the rank-th that this program may use.
void pin(int rank) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < ranks) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != rank) continue;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(0, sizeof own, &own);
    return;
  }
}

void meet(meeting& place) {
  const int before = place.meetings.load(std::memory_order_relaxed);
  if (place.arrived.fetch_add(1) + 1 == ranks) {
    place.arrived.store(0, std::memory_order_relaxed);
    place.meetings.store(before + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; place.meetings.load(std::memory_order_acquire) == before; ++spins) {
    if (spins > 10'000) sched_yield();
  }
}

void add_into_both(float* __restrict x, float* __restrict y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) x[i] = y[i] = x[i] + y[i];
}

/// One rank's half of both arrays.
struct share_of {
  std::span<float> x;
  std::span<float> y;

  share_of(int rank, float* all_x, float* all_y, std::size_t count) {
    const std::size_t half = count / ranks / 16 * 16;  // whole cache lines
    const std::size_t begin = rank == 0 ? 0 : half;
    const std::size_t size = rank == 0 ? half : count - half;
    x = {all_x + begin, size};
    y = {all_y + begin, size};
  }
};

/// Seconds of each of `iterations` passes; both processes call it.
std::vector<double> time_passes(meeting& place, int rank, const share_of& mine, int iterations) {
  const auto add = [&] { add_into_both(mine.x.data(), mine.y.data(), mine.x.size()); };
  std::fill(mine.x.begin(), mine.x.end(), 1.0f);
  std::fill(mine.y.begin(), mine.y.end(), 2.0f);
  add();
  const auto is_sum = [](float value) { return value == 3.0f; };
  if (!std::all_of(mine.x.begin(), mine.x.end(), is_sum) || !std::all_of(mine.y.begin(), mine.y.end(), is_sum)) {
    std::fputs("memory_limit: a wrong sum (its times would mean nothing)\n", stderr);
    std::exit(1);
  }
  std::fill(mine.x.begin(), mine.x.end(), 0.0f);
  std::fill(mine.y.begin(), mine.y.end(), 0.0f);

  const auto stamps = bench::call_stamps(
      bench::op::reduce, iterations, [&] { meet(place); }, add);
  std::copy(stamps.begin(), stamps.end(), place.stamps[static_cast<std::size_t>(rank)].begin());
  meet(place);
  std::vector<std::int64_t> largest(stamps.size());
  for (std::size_t i = 0; i < stamps.size(); ++i) largest[i] = std::max(place.stamps[0][i], place.stamps[1][i]);
  meet(place);  // before the next are written
  return bench::seconds_of(largest);
}

void take_turns(bench::turns turns, meeting& place, int rank, float* x, float* y) {
  while (const auto turn = turns.next()) {
    const share_of mine(rank, x, y, turn->bytes / sizeof(float));
    (void)time_passes(place, rank, mine, bench::warm_up_for(turn->bytes));
    const auto times = time_passes(place, rank, mine, bench::iterations_for(turn->bytes));
    if (rank == 0) bench::answer(*turn, times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto& place = *new (share(sizeof(meeting))) meeting;
  auto* const x = static_cast<float*>(share(bench::largest));
  auto* const y = static_cast<float*>(share(bench::largest));
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail("memory_limit: fork");
  const int rank = child == 0 ? 1 : 0;
  if (rank == 1) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) return 1;  // it was gone before that
  }
  pin(rank);
  const std::string who[] = {"memory_limit"};
  if (rank == 0) bench::say_ready(who, "");
  try {
    const auto folder = bench::folder_of_turns(argc, argv);
    const bench::op once[] = {bench::op::allreduce};
    take_turns(folder ? bench::turns(*folder, rank) : bench::turns(argc, argv, once), place, rank, x, y);
  } catch (const std::exception& failure) {
    if (rank == 0) std::fprintf(stderr, "memory_limit: error: %s\n", failure.what());
    return 1;
  }
  if (rank == 1) return 0;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
