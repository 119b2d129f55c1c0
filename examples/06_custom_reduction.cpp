// A user-defined struct, reduced by a user-defined function: count, sum and largest value in one allreduce.
//
//   $ 06_custom_reduction --ranks 3
//   6 values, mean 2.5, largest 5, of rank 2
#include <cstdint>
#include <cstdio>

#include <muster/muster.hpp>

/// Ranks send the object representation: the type is trivially copyable and has 2, 4, 8, 16, 32 or 64 bytes.
struct summary {
  double sum = 0;
  double largest = -1e300;
  std::uint64_t count = 0;
  std::uint64_t at = 0;  // the rank with the largest value

  void add(double value, int rank) {
    sum += value;
    ++count;
    if (value > largest) largest = value, at = static_cast<std::uint64_t>(rank);
  }
};

/// Merges two summaries. Associative and commutative, because the algorithm decides the order of the ranks.
summary merge(const summary& a, const summary& b) {
  const summary& top = a.largest > b.largest || (a.largest == b.largest && a.at < b.at) ? a : b;
  return {a.sum + b.sum, top.largest, a.count + b.count, top.at};
}

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [](muster::context&, muster::group& world) {
    summary mine;
    for (int k = 0; k < 2; ++k) mine.add(2 * world.rank() + k, world.rank());
    const summary all = muster::allreduce(world, mine, merge);
    if (world.rank() == 0)
      std::printf("%d values, mean %g, largest %g, of rank %d\n", static_cast<int>(all.count),
                  all.sum / static_cast<double>(all.count), all.largest, static_cast<int>(all.at));
  });
}
