#include <muster/data/placement.hpp>

#include <algorithm>
#include <numeric>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

using kind = muster::placement_kind;

std::vector<std::uint64_t> records(std::size_t count) { return std::vector<std::uint64_t>(count, 1); }

}  // namespace

TEST_CASE("every part is on one machine, and records add up") {
  const std::uint64_t seed = 8;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int round = 0; round < 400; ++round) {
    std::vector<std::uint64_t> parts(random.below(200));
    for (auto& part : parts) part = random.below(round % 2 == 0 ? 2 : 1000);
    const std::size_t machines = 1 + random.below(9);
    muster::placement_options options{.kind = static_cast<kind>(random.below(3)), .seed = random()};
    if (round % 3 == 0) {
      for (std::size_t i = 0; i < machines; ++i) options.weights.push_back(random.uniform());
    }
    const muster::placement placed(parts, machines, options);
    REQUIRE(placed.machines() == machines);
    std::vector<int> seen(parts.size());
    for (std::size_t machine = 0; machine < machines; ++machine) {
      std::uint64_t sum = 0;
      for (const std::size_t part : placed.parts_of(machine)) {
        REQUIRE(placed.machine_of(part) == machine);
        ++seen[part];
        sum += parts[part];
      }
      REQUIRE(sum == placed.records()[machine]);
    }
    REQUIRE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    REQUIRE(placed.moved_since(muster::placement(parts, machines, options)).empty());
  }
}

TEST_CASE("ten thousand records are spread to within one in a hundred, whatever the kind and the weights") {
  for (const auto how : {kind::contiguous, kind::strided, kind::hash}) {
    for (const std::size_t machines : {1u, 2u, 3u, 4u, 7u, 16u}) {
      CAPTURE(static_cast<int>(how), machines);
      CHECK(muster::placement(records(10'000), machines, {.kind = how}).imbalance() <= 0.01);
      std::vector<double> weights(machines, 1.0);
      weights[0] = 3.0;
      const muster::placement weighted(records(10'000), machines, {.kind = how, .weights = weights});
      CHECK(weighted.imbalance() <= 0.01);
      const double share = 3.0 / (3.0 + static_cast<double>(machines - 1));
      CHECK(static_cast<double>(weighted.records()[0]) >= 0.98 * share * 10'000);
    }
  }
}

TEST_CASE("what cannot be spread evenly is told") {
  const std::vector<std::uint64_t> parts = {1000, 10, 10};
  for (const auto how : {kind::contiguous, kind::strided, kind::hash}) {
    CHECK(muster::placement(parts, 2, {.kind = how}).imbalance() > 0.9);
  }
  CHECK(muster::placement({}, 3).imbalance() == 0);
}

TEST_CASE("contiguous parts are runs, strided ones take turns") {
  const muster::placement runs(records(100), 7);
  for (std::size_t part = 1; part < 100; ++part) REQUIRE(runs.machine_of(part) >= runs.machine_of(part - 1));
  const muster::placement turns(records(100), 7, {.kind = kind::strided});
  for (std::size_t part = 7; part < 100; ++part) REQUIRE(turns.machine_of(part) == turns.machine_of(part - 7));
  const muster::placement weighted(records(4), 2, {.kind = kind::strided, .weights = {3, 1}});
  CHECK(weighted.parts_of(0).size() == 3);
}

TEST_CASE("a machine of weight 0 gets nothing") {
  for (const auto how : {kind::contiguous, kind::strided, kind::hash}) {
    CHECK(muster::placement(records(1000), 3, {.kind = how, .weights = {1, 0, 1}}).records()[1] == 0);
  }
}

TEST_CASE("by hash, growing data and another machine move few parts") {
  const muster::placement before(records(10'000), 4, {.kind = kind::hash});
  const muster::placement grown(records(10'500), 4, {.kind = kind::hash});
  CHECK(grown.moved_since(before).size() < 300);
  const muster::placement more(records(10'000), 5, {.kind = kind::hash});
  CHECK(more.moved_since(before).size() < 2300);  // 2,000 go to the new one
  CHECK(muster::placement(records(10'000), 4, {.kind = kind::hash, .seed = 1}).moved_since(before).size() > 7000);
}

TEST_CASE("machines and weights that cannot be are refused") {
  CHECK_THROWS_AS(muster::placement(records(3), 0), muster::configuration_error);
  CHECK_THROWS_AS(muster::placement(records(3), 2, {.weights = {1}}), muster::configuration_error);
  CHECK_THROWS_AS(muster::placement(records(3), 2, {.weights = {1, -1}}), muster::configuration_error);
  CHECK_THROWS_AS(muster::placement(records(3), 2, {.weights = {0, 0}}), muster::configuration_error);
}
