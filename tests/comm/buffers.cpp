// Allreduces of several buffers, on ranks that are threads.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include <muster/comm/collectives/buffers.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"
#include "comm/oracle.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

// Returns element i of the input of a rank: a small number.
template <class T>
T buffer_value(std::uint64_t seed, int rank, std::size_t i) {
  return static_cast<T>(muster::mix(seed + static_cast<std::uint64_t>(rank) * 77 + i) % 5);
}

template <class T>
std::vector<T> buffer_input(std::uint64_t seed, int rank, std::size_t count) {
  std::vector<T> in(count);
  for (std::size_t i = 0; i < count; ++i) in[i] = buffer_value<T>(seed, rank, i);
  return in;
}

template <class T>
void check_buffers(muster::group& world, std::uint64_t seed) {
  muster::random_stream random(seed, 3);
  const auto number = random.below(20);
  std::vector<std::vector<T>> data;
  std::vector<std::span<T>> buffers;
  for (std::uint64_t b = 0; b < number; ++b) {
    const auto count = random.below(2) == 0 ? random.below(4) : random.below(5000);
    data.push_back(buffer_input<T>(seed + b, world.rank(), count));
  }
  for (auto& each : data) buffers.emplace_back(each);
  const std::span<const std::span<T>> all(buffers);
  if (seed % 3 == 0)
    muster::allreduce(world, all, muster::sum);
  else if (seed % 3 == 1)
    muster::allreduce_async(world, all, muster::max).wait();
  else
    muster::allreduce(world, all, muster::mean);
  for (std::uint64_t b = 0; b < number; ++b) {
    for (std::size_t i = 0; i < data[b].size(); ++i) {
      T total = buffer_value<T>(seed + b, 0, i);
      for (int r = 1; r < world.size(); ++r) {
        const T next = buffer_value<T>(seed + b, r, i);
        total = seed % 3 == 1 ? std::max(total, next) : static_cast<T>(total + next);
      }
      if (seed % 3 == 2) total = static_cast<T>(total / static_cast<T>(world.size()));
      test::require(data[b][i] == total, "a buffer's element");
    }
  }
}

}  // namespace

TEST_CASE("an allreduce of several buffers is the allreduce of each") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const auto seed = test::cases_of_run(1).seed;
  std::cout << "seed " << seed << " (MUSTER_TEST_SEED sets another)\n";
  for (const int ranks : {1, 2, 3, 5}) {
    INFO(ranks << " ranks");
    REQUIRE_NOTHROW(test::run_ranks(over, ranks, [&](muster::group& world) {
      for (std::uint64_t round = 0; round < 30; ++round) {
        check_buffers<float>(world, seed + round);
        check_buffers<std::int32_t>(world, seed + round);
        check_buffers<std::int64_t>(world, seed + round);
      }
      std::vector<float> a(3, 1), b, c(1, 2);
      muster::allreduce(world, {a, b, c}, muster::sum);
      test::require(a[2] == static_cast<float>(ranks) && c[0] == static_cast<float>(2 * ranks), "a list");
      std::vector<int> d(2, 1), e(1, 3);
      muster::allreduce<int>(world, {d, e}, muster::max);
      test::require(d[1] == 1 && e[0] == 3, "a list of ints");
    }));
  }
}

TEST_CASE("buffers that are divided in another way are a mismatch with their counts") {
  const auto over = GENERATE(from_range(test::fabrics()));
  const std::size_t scale = GENERATE(1u, 20000u);
  const auto thrown = test::outcomes(over, 2, [&](muster::group& world) {
    std::vector<float> a(3 * scale), b(4 * scale);
    if (world.rank() == 0)
      muster::allreduce(world, {a, b}, muster::sum);
    else
      muster::allreduce(world, {b, a}, muster::sum);
  });
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    CHECK(muster::exit_status_of(failure) == static_cast<int>(muster::error_kind::mismatch));
    CHECK_THAT(muster::describe(failure), contains("in several buffers"));
    CHECK_THAT(muster::describe(failure), contains("this rank's counts of the input are"));
  }
}
