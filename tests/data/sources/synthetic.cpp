#include <muster/data/sources/synthetic.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

#include <muster/core/error.hpp>
#include "catch.hpp"

namespace {

double accuracy(const muster::dataset& data, const std::vector<float>& weights) {
  std::size_t right = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    double product = 0;
    for (std::size_t j = 0; j < weights.size(); ++j) product += double(data.row(i)[j]) * double(weights[j]);
    right += (product > 0) == (data.label(i) > 0) ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(data.size());
}

bool same_rows(const muster::dataset& a, std::size_t first, const muster::dataset& b, std::size_t b_first,
               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto a_row = a.row(first + i);
    const auto b_row = b.row(b_first + i);
    if (!std::equal(a_row.begin(), a_row.end(), b_row.begin(), b_row.end())) return false;
    if (a.label(first + i) != b.label(b_first + i)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a row of epsilon depends on its seed and its number alone") {
  const auto all = muster::data::synthetic_epsilon(700, 5);
  for (const int threads : {1, 2, 7})
    CHECK(muster::data::synthetic_epsilon(700, 5, {.threads = threads}).digest() == all.digest());
  CHECK(same_rows(muster::data::synthetic_epsilon(300, 5), 0, all, 0, 300));
  CHECK(same_rows(muster::data::synthetic_epsilon(300, 5, {.first_row = 123}), 0, all, 123, 300));
  CHECK(muster::data::synthetic_epsilon(700, 6).digest() != all.digest());
  CHECK_FALSE(same_rows(all, 0, all, 1, 1));
  CHECK(all.name() == "epsilon:700");
  CHECK_THROWS_AS(muster::data::synthetic_epsilon(0, 1), muster::configuration_error);
}

TEST_CASE("epsilon looks like epsilon: dense rows of unit length, two classes of equal size") {
  const auto data = muster::data::synthetic_epsilon(4000, 9);
  CHECK(data.features() == 2000);
  CHECK_FALSE(data.is_sparse());
  CHECK(data.classes() == std::vector<float>{-1, 1});
  double labels = 0;
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    double square = 0;
    for (const float value : data.row(i)) {
      square += double(value) * double(value);
      zeros += value == 0 ? 1 : 0;
    }
    REQUIRE(std::sqrt(square) == Approx(1).epsilon(1e-5));
    labels += double(data.label(i));
  }
  CHECK(zeros < data.size());  // of 2,000 times as many values
  CHECK(std::fabs(labels / 4000) < 0.06);
}

TEST_CASE("the model behind epsilon is right in 91 cases of 100, on training and test rows, and fits no other seed") {
  const auto train = muster::data::synthetic_epsilon(8000, 1);
  const auto test = muster::data::synthetic_epsilon(8000, 1, {.first_row = 8000});
  const auto model = muster::data::epsilon_model(1);
  CHECK(accuracy(train, model) == Approx(0.91).margin(0.01));
  CHECK(accuracy(test, model) == Approx(0.91).margin(0.01));
  CHECK(accuracy(train, muster::data::epsilon_model(2)) < 0.75);
}

TEST_CASE("epsilon has the same bits everywhere") {
  const auto data = muster::data::synthetic_epsilon(1000, 1);
  CHECK(data.digest() == 0x32ea9eda0f217ab9);
  CHECK(std::bit_cast<std::uint32_t>(data.row(0)[0]) == 0xbefd7525);
  CHECK(std::bit_cast<std::uint32_t>(data.row(999)[1999]) == 0x3ac2fe0c);
}
