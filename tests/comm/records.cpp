// Collectives of structs: any trivially copyable type is moved, and a function of the program reduces it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scatter.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "require.hpp"

namespace {

struct point {  // 12 bytes, including three bytes of padding
  std::int32_t x;
  float y;
  std::uint8_t colour;
  bool operator==(const point&) const = default;
};
static_assert(sizeof(point) == 12 && muster::transferable<point> && !muster::reducible<point>);

struct summary {
  double sum, count, largest, unused;
  bool operator==(const summary&) const = default;
};
static_assert(muster::reducible<summary> && muster::reducible<std::byte>);
static_assert(!muster::transferable<int*> && !muster::transferable<std::vector<int>> &&
              !muster::transferable<std::array<char, 240>>);
static_assert(muster::is_record(muster::type_code_of<std::array<char, 239>>()) &&
              muster::size_of(muster::type_code_of<std::array<char, 239>>()) == 239);
static_assert(!muster::reduction_operation<decltype(muster::sum), summary>, "the five are for numbers");

constexpr auto merge = [](const summary& a, const summary& b) {
  return summary{a.sum + b.sum, a.count + b.count, std::max(a.largest, b.largest), 0};
};

point point_of(int rank, std::size_t i) {
  return {rank, static_cast<float>(i), static_cast<std::uint8_t>(i + static_cast<std::size_t>(rank))};
}
summary summary_of(int rank, std::size_t i) {
  const auto value = static_cast<double>(rank) * 3 + static_cast<double>(i);
  return {value, 1, value, 0};
}
using test::require;

}  // namespace

TEST_CASE("structs move by every collective that moves") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const int ranks = GENERATE(1, 3, 4);
  const std::size_t count = GENERATE(1u, 5u, 40'000u);
  CAPTURE(over, ranks, count);
  const auto thrown = test::outcomes(over, ranks, [&](muster::group& world) {
    const int me = world.rank(), n = world.size();
    const auto size = static_cast<std::size_t>(n);
    std::vector<point> mine(count), all(count * size);
    for (std::size_t i = 0; i < count; ++i) mine[i] = point_of(me, i);
    muster::allgather(world, mine, all);
    for (std::size_t i = 0; i < all.size(); ++i)
      require(all[i] == point_of(static_cast<int>(i / count), i % count), "allgather");
    std::vector<point> root(all.size()), part(count), turned(all.size());
    muster::gather(world, mine, root, n - 1);
    if (me == n - 1) require(root == all, "gather");
    muster::scatter(world, all, part, 0);
    require(part == mine, "scatter");
    muster::all_to_all(world, all, turned);
    for (std::size_t i = 0; i < turned.size(); ++i) require(turned[i] == point_of(me, i % count), "all_to_all");
    muster::broadcast(world, mine, n - 1);
    require(mine[count - 1] == point_of(n - 1, count - 1), "broadcast");
    auto single = point_of(me, 7);
    muster::broadcast(world, single, 0);
    require(single == point_of(0, 7), "broadcast of one");
  });
  for (const auto& failure : thrown) CHECK((failure ? muster::describe(failure) : "") == "");
}

TEST_CASE("structs are reduced by a function of the program's") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const int ranks = GENERATE(1, 3, 4);
  const std::size_t count = GENERATE(1u, 7u, 30'000u);
  CAPTURE(over, ranks, count);
  const auto thrown = test::outcomes(over, ranks, [&](muster::group& world) {
    const int n = world.size();
    std::vector<summary> values(count), expected(count, {0, 0, -std::numeric_limits<double>::infinity(), 0});
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = summary_of(world.rank(), i);
      for (int r = 0; r < n; ++r) expected[i] = merge(expected[i], summary_of(r, i));
    }
    std::vector<summary> block(muster::block_of(count, world.rank(), n).count);
    muster::reduce_scatter(world, values, block, merge);
    for (std::size_t i = 0; i < block.size(); ++i)
      require(block[i] == expected[muster::block_of(count, world.rank(), n).first + i], "reduce_scatter");
    for (const auto name : {muster::algorithm::automatic, muster::algorithm::ring,
                            muster::algorithm::recursive_doubling, muster::algorithm::tree}) {
      auto result = values;
      muster::allreduce(world, result, merge, {.algorithm = name});
      require(result == expected, "allreduce");
    }
    require(muster::allreduce(world, summary_of(world.rank(), 0), merge) == expected[0], "allreduce of one");
  });
  for (const auto& failure : thrown) CHECK((failure ? muster::describe(failure) : "") == "");
}

TEST_CASE("ranks whose structs have different sizes are told") {
  const auto over = GENERATE(from_range(test::every_fabric()));
  const auto thrown = test::outcomes(over, 2, [](muster::group& world) {
    std::array<point, 8> points{};
    std::array<summary, 8> summaries{};
    if (world.rank() == 0)
      muster::broadcast(world, points, 0);
    else
      muster::broadcast(world, summaries, 0);
    muster::barrier(world);
  });
  std::string text;
  for (const auto& failure : thrown) text += failure ? muster::describe(failure) + "\n" : "";
  CHECK_THAT(text, Catch::Matchers::Contains("broadcast of 8 records of 12 bytes") &&
                       Catch::Matchers::Contains("broadcast of 8 records of 32 bytes"));
}
