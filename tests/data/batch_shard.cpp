#include <muster/data/batch_shard.hpp>

#include <limits>

#include <muster/core/random.hpp>
#include "catch.hpp"

TEST_CASE("slices are disjoint, complete, in order and balanced") {
  const std::uint64_t seed = 2;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int i = 0; i < 5000; ++i) {
    const std::uint64_t count = random.below(i % 2 == 0 ? 50 : 100000);
    const int world = 1 + static_cast<int>(random.below(i % 3 == 0 ? 2000 : 9));
    CAPTURE(count, world);
    std::uint64_t next = 0;
    for (int rank = 0; rank < world; ++rank) {
      const auto part = muster::part_of(count, {rank, world});
      REQUIRE(part.first == next);
      REQUIRE(part.last == static_cast<std::uint64_t>(rank + 1) * count / static_cast<std::uint64_t>(world));
      const auto least = count / static_cast<std::uint64_t>(world);
      REQUIRE((part.size() == least || part.size() == least + 1));
      next = part.last;
    }
    REQUIRE(next == count);
  }
}

TEST_CASE("slices of the largest count there is do not overflow") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  CHECK(muster::part_of(most, {999, 1000}).last == most);
  CHECK(muster::part_of(most, {0, 2}).last == most / 2);
}

TEST_CASE("a slice that is none is refused") {
  for (const muster::batch_shard& wrong :
       {muster::batch_shard{-1, 2}, muster::batch_shard{2, 2}, muster::batch_shard{0, 0}, muster::batch_shard{0, -1}}) {
    CHECK_THROWS_AS(muster::part_of(10, wrong), muster::configuration_error);
  }
}
