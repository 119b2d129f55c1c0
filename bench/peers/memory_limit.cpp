// The highest rate at which two processes can add. Each process adds one half of two arrays that both have mapped, and
// writes every sum into both arrays. This takes two reads and two writes of memory for each element, which is the least
// for an allreduce of two ranks in place when each rank can access the other rank's array.
//   build/release/bench/peers/memory_limit [BYTES...]
// Prints lines of JSON in the form of peers/mpi_collectives, and accepts --turns=FOLDER like it.
#include "limit.hpp"

namespace {

void add_into_both(float* __restrict x, float* __restrict y, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) x[i] = y[i] = x[i] + y[i];
}

/// One rank's half of both arrays.
struct share_of {
  std::span<float> x;
  std::span<float> y;

  share_of(int rank, float* all_x, float* all_y, std::size_t count) {
    const std::size_t half = count / bench::limit_ranks / 16 * 16;  // Whole cache lines.
    const std::size_t begin = rank == 0 ? 0 : half;
    const std::size_t size = rank == 0 ? half : count - half;
    x = {all_x + begin, size};
    y = {all_y + begin, size};
  }
};

std::vector<double> time_passes(bench::meeting& barrier, int rank, const share_of& mine, bench::repeats count) {
  const auto add = [&] { add_into_both(mine.x.data(), mine.y.data(), mine.x.size()); };
  std::fill(mine.x.begin(), mine.x.end(), 1.0f);
  std::fill(mine.y.begin(), mine.y.end(), 2.0f);
  add();
  const auto is_sum = [](float value) { return value == 3.0f; };
  if (!std::all_of(mine.x.begin(), mine.x.end(), is_sum) || !std::all_of(mine.y.begin(), mine.y.end(), is_sum))
    throw std::runtime_error("a wrong sum (its times would mean nothing)");
  std::fill(mine.x.begin(), mine.x.end(), 0.0f);
  std::fill(mine.y.begin(), mine.y.end(), 0.0f);
  return barrier.times_of(bench::op::reduce, rank, {count.times}, add);
}

}  // namespace

int main(int argc, char** argv) {
  auto* const x = static_cast<float*>(bench::share_with_children(bench::largest));
  auto* const y = static_cast<float*>(bench::share_with_children(bench::largest));
  return bench::run_limit(argc, argv, "memory_limit", bench::limit_ranks,
                          [&](const bench::turn& now, bench::meeting& barrier, int rank) {
                            const share_of mine(rank, x, y, now.bytes / sizeof(float));
                            (void)time_passes(barrier, rank, mine, bench::warm_up_for(now.operation, now.bytes));
                            return time_passes(barrier, rank, mine, bench::repeats_for(now.operation, now.bytes));
                          });
}
