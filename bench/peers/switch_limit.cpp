// The highest rate at which more processes than cores can wait for each other. Each process announces its arrival by a
// number and yields its core until the processes for which it waits have arrived. There are no data,
// deadlines or failures. If two processes share a core, the first process yields the core and receives it again: two
// context switches, which are nearly all of the time of a small collective in this case.
//   build/release/bench/peers/switch_limit RANKS [BYTES...]
// Prints lines of JSON in the form of peers/mpi_collectives, and accepts --turns=FOLDER like it. The time is the same
// for all sizes.
#include <cstdlib>

#include "limit.hpp"

namespace {

struct place_of_rank {
  alignas(256) std::atomic<std::uint64_t> calls{0};
};

class crowd {
 public:
  explicit crowd(int ranks) : ranks_(ranks), cores_(bench::allowed_cores()) {
    void* const memory = bench::share_with_children(static_cast<std::size_t>(ranks) * sizeof(place_of_rank));
    places_ = new (memory) place_of_rank[static_cast<std::size_t>(ranks)];
  }

  /// Runs call `number` as rank `rank`.
  void call(bench::op operation, int rank, std::uint64_t number) {
    places_[rank].calls.store(number, std::memory_order_release);
    const int last = last_awaited(operation, rank);
    for (bool all_are_there = false; !all_are_there;) {
      all_are_there = true;
      bool one_waits_for_this_core = false;
      for (int other = 0; other < last; ++other) {
        if (places_[other].calls.load(std::memory_order_acquire) >= number) continue;
        all_are_there = false;
        one_waits_for_this_core = one_waits_for_this_core || other % cores_ == rank % cores_;
      }
      if (one_waits_for_this_core) sched_yield();
    }
  }

 private:
  /// Returns the end of the ranks for which `rank` waits; rank 0 is the first.
  [[nodiscard]] int last_awaited(bench::op operation, int rank) const {
    if (operation == bench::op::allreduce) return ranks_;
    const bool is_root = rank == 0;
    if (operation == bench::op::reduce) return is_root ? ranks_ : 0;
    return is_root ? 0 : 1;
  }

  int ranks_;
  int cores_;
  place_of_rank* places_;
};

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 0;
  if (ranks < 1 || ranks > bench::most_limit_ranks) {
    std::fprintf(stderr, "switch_limit: error: how many ranks is missing (1 to %d)\n", bench::most_limit_ranks);
    return 2;
  }
  crowd all(ranks);
  std::uint64_t calls = 0;
  return bench::run_limit(
      argc - 1, argv + 1, "switch_limit", ranks, [&](const bench::turn& now, bench::meeting& barrier, int rank) {
        const auto once = [&] { all.call(now.operation, rank, ++calls); };
        (void)barrier.times_of(now.operation, rank, bench::warm_up_for(now.operation, now.bytes), once);
        return barrier.times_of(now.operation, rank, bench::repeats_for(now.operation, now.bytes), once);
      });
}
