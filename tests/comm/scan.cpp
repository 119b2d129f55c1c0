// Scans, and logical and bitwise operations, on ranks that are threads.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/scan.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

// Returns element i of the input of a rank: a small number.
template <class T>
T scanned_value(std::uint64_t seed, int rank, std::size_t i) {
  return static_cast<T>(muster::mix(seed + static_cast<std::uint64_t>(rank) * 77 + i) % 5);
}

template <class T>
std::vector<T> scan_input(std::uint64_t seed, int rank, std::size_t count) {
  std::vector<T> in(count);
  for (std::size_t i = 0; i < count; ++i) in[i] = scanned_value<T>(seed, rank, i);
  return in;
}

// Compares all calls with `op` to the same operation over the ranks' values, one after another.
template <class T, class Op>
void check_scan(muster::group& world, std::uint64_t seed, std::size_t count, Op op, bool commutes = true) {
  const int me = world.rank();
  const auto expect = [&](const std::vector<T>& got, int first, int last) {
    for (std::size_t i = 0; i < count; ++i) {
      T expected = scanned_value<T>(seed, first, i);
      for (int r = first + 1; r < last; ++r) expected = static_cast<T>(op(expected, scanned_value<T>(seed, r, i)));
      test::require(got[i] == expected, "an element");
    }
  };
  const auto in = scan_input<T>(seed, me, count);
  std::vector<T> out(count, T{9});
  muster::scan(world, in, out, op);
  expect(out, 0, me + 1);
  auto both = in;
  muster::scan_async(world, both, both, op).wait();
  expect(both, 0, me + 1);
  std::fill(out.begin(), out.end(), T{9});
  muster::exclusive_scan_async(world, in, out, op).wait();
  if (me == 0)
    test::require(out == std::vector<T>(count, T{9}), "rank 0 is not written");
  else
    expect(out, 0, me);
  both = in;
  muster::exclusive_scan(world, both, both, op);
  if (me > 0) expect(both, 0, me);
  if (!commutes) return;
  muster::allreduce(world, in, out, op);
  expect(out, 0, world.size());
}

}  // namespace

TEST_CASE("scans and logical and bitwise operations equal their definition") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const auto seed = test::cases_of_run(1).seed;
  std::cout << "seed " << seed << " (MUSTER_TEST_SEED sets another)\n";
  for (const int ranks : {1, 2, 3, 5, 8}) {
    INFO(ranks << " ranks");
    REQUIRE_NOTHROW(test::run_ranks(over, ranks, [&](muster::group& world) {
      for (const std::size_t count : {0u, 1u, 77u, 3000u, 70000u}) {
        const auto mixed = seed + count;
        check_scan<std::int32_t>(world, mixed, count, muster::sum);
        check_scan<double>(world, mixed, count, muster::max);
        // a function that depends on the order of the ranks
        const auto last = [](std::int64_t, std::int64_t b) { return b; };
        check_scan<std::int64_t>(world, mixed, count, last, false);
        check_scan<float>(world, mixed, count, muster::logical_and);
        check_scan<std::uint8_t>(world, mixed, count, muster::logical_or);
        check_scan<std::int16_t>(world, mixed, count, muster::logical_xor);
        check_scan<std::uint32_t>(world, mixed, count, muster::bit_and);
        check_scan<std::uint64_t>(world, mixed, count, muster::bit_or);
        check_scan<std::int8_t>(world, mixed, count, muster::bit_xor);
      }
    }));
  }
}
