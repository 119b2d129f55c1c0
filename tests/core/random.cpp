#include <muster/core/random.hpp>

#include <algorithm>
#include <vector>

#include "catch.hpp"

TEST_CASE("streams repeat for a key and differ between keys") {
  muster::random_stream first(1, 2);
  muster::random_stream again(1, 2);
  muster::random_stream second_stream(1, 3);
  int equal = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto value = first();
    REQUIRE(value == again());
    equal += value == second_stream() ? 1 : 0;
  }
  CHECK(equal == 0);
}

TEST_CASE("below() is even over its range") {
  muster::random_stream random(11);
  for (const std::uint64_t bound : {1u, 2u, 3u, 7u, 10u}) {
    std::vector<int> counts(bound);
    for (int i = 0; i < 20000; ++i) ++counts[random.below(bound)];
    const double expected = 20000.0 / static_cast<double>(bound);
    double chi_squared = 0;
    for (const int count : counts) chi_squared += (count - expected) * (count - expected) / expected;
    CHECK(chi_squared < 30.0);  // at most 9 degrees of freedom: all but 0.05 % of seeds pass, and the seed is fixed
  }
}

TEST_CASE("normal() has mean 0 and variance 1") {
  muster::random_stream random(5);
  double sum = 0, squares = 0;
  constexpr int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
  }
  CHECK(sum / n == Approx(0.0).margin(0.01));
  CHECK(squares / n == Approx(1.0).margin(0.02));
}
