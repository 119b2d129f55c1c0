#include <muster/core/codec/powersgd.hpp>

#include <cmath>
#include <string>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "draws.hpp"

namespace {

using matrix = std::vector<float>;

matrix normals(muster::random_stream& random, std::size_t size) {
  matrix values(size);
  for (float& value : values) value = static_cast<float>(random.normal());
  return values;
}

matrix start(const muster::low_rank_shape& shape, std::uint64_t draw) {
  matrix right(shape.right_size());
  muster::low_rank_refill(shape, draw, right);
  return right;
}

/// Computes one round of a rank and returns the approximation. `right` becomes the Q of the next round.
matrix approximate(const muster::low_rank_shape& shape, const matrix& input, matrix& right) {
  matrix left(shape.left_size()), result(input.size());
  muster::low_rank_left(shape, input, right, left);
  muster::orthonormalise(shape, left);
  muster::low_rank_right(shape, input, left, right);
  muster::low_rank_add(shape, left, right, 1.0f, result);
  return result;
}

}  // namespace

TEST_CASE("the factors are those of the definition") {
  const muster::low_rank_shape shape{GENERATE(2u, 5u, 33u), GENERATE(2u, 16u, 47u), GENERATE(1u, 2u, 4u)};
  CAPTURE(shape.rows, shape.columns, shape.used());
  muster::random_stream random(1);
  const auto m = normals(random, shape.rows * shape.columns);
  const auto q = normals(random, shape.right_size());
  matrix p(shape.left_size()), q2(shape.right_size());
  muster::low_rank_left(shape, m, q, p);
  muster::low_rank_right(shape, m, p, q2);
  const auto element = [&](std::size_t row, std::size_t column) {
    return static_cast<double>(m[row * shape.columns + column]);
  };
  for (std::size_t k = 0; k < shape.used(); ++k) {
    for (std::size_t row = 0; row < shape.rows; ++row) {
      double sum = 0;
      for (std::size_t c = 0; c < shape.columns; ++c)
        sum += element(row, c) * static_cast<double>(q[k * shape.columns + c]);
      REQUIRE(p[k * shape.rows + row] == Approx(sum).margin(1e-4));
    }
    for (std::size_t c = 0; c < shape.columns; ++c) {
      double sum = 0;
      for (std::size_t row = 0; row < shape.rows; ++row)
        sum += element(row, c) * static_cast<double>(p[k * shape.rows + row]);
      REQUIRE(q2[k * shape.columns + c] == Approx(sum).margin(1e-3));
    }
  }
}

TEST_CASE("columns become orthogonal and of length 1, and what depends on others becomes zeros") {
  const muster::low_rank_shape shape{GENERATE(5u, 100u, 1000u), 1000, 4};
  muster::random_stream random(2);
  auto p = normals(random, shape.left_size());
  for (std::size_t i = 0; i < shape.rows; ++i) {
    p[shape.rows + i] = p[i] + 1e-2f * p[shape.rows + i];         // almost equal to the first
    p[3 * shape.rows + i] = 2.0f * p[i] - p[2 * shape.rows + i];  // a linear combination of two other columns
  }
  muster::orthonormalise(shape, p);
  for (std::size_t a = 0; a < 4; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      double product = 0;
      for (std::size_t i = 0; i < shape.rows; ++i)
        product += static_cast<double>(p[a * shape.rows + i]) * static_cast<double>(p[b * shape.rows + i]);
      CAPTURE(shape.rows, a, b);
      CHECK(product == Approx(a == b && a != 3 ? 1.0 : 0.0).margin(2e-6));
    }
  }
}

TEST_CASE("a matrix of the rank is found in one round, any other is contracted") {
  muster::random_stream random(3);
  const muster::low_rank_shape shape{30, 50, 3};
  const auto left = normals(random, shape.left_size());
  const auto right = normals(random, shape.right_size());
  matrix product(1500);
  muster::low_rank_add(shape, left, right, 1.0f, product);
  auto q = start(shape, 4);
  CHECK(squared_distance(product, approximate(shape, product, q)) < 1e-8 * squares(product));

  const auto any = normals(random, 1500);
  q = start(shape, 5);
  double last = squares(any);
  for (int round = 0; round < 20; ++round) {  // warm start: each round is a power iteration
    const double error = squared_distance(any, approximate(shape, any, q));
    REQUIRE(error <= last * (1 + 1e-6));
    last = error;
  }
  CHECK(last < 0.85 * squares(any));
}

TEST_CASE("warm start comes to the best approximation there is") {
  muster::random_stream random(6);
  const muster::low_rank_shape full{20, 24, 4}, best{20, 24, 2};
  auto u = normals(random, full.left_size());
  auto v = normals(random, 4 * 24);
  muster::orthonormalise(full, u);
  muster::orthonormalise({24, 24, 4}, v);
  const float singular[] = {10.0f, 5.0f, 1.0f, 0.5f};
  for (std::size_t i = 0; i < v.size(); ++i) v[i] *= singular[i / 24];
  matrix m(480);
  muster::low_rank_add(full, u, v, 1.0f, m);
  auto q = start(best, 7);
  double error = 0;
  for (int round = 0; round < 30; ++round) error = squared_distance(m, approximate(best, m, q));
  CHECK(error == Approx(1.0 + 0.25).epsilon(1e-3));  // Eckart and Young: the squares of the omitted singular values
}

TEST_CASE("the residuals of the ranks sum to what the sum lacks") {
  constexpr std::size_t ranks = 3;
  const muster::low_rank_shape shape{12, 18, 2};
  muster::random_stream random(8);
  std::vector<matrix> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) parts.push_back(normals(random, 216));
  auto q = start(shape, 9);
  matrix p(shape.left_size()), contribution(shape.left_size());
  for (const auto& part : parts) {
    muster::low_rank_left(shape, part, q, contribution);
    for (std::size_t i = 0; i < p.size(); ++i) p[i] += contribution[i];
  }
  muster::orthonormalise(shape, p);
  matrix sum(216), lacking(216), q_sum(shape.right_size());
  for (const auto& part : parts) {
    muster::low_rank_right(shape, part, p, q);
    auto residual = part;
    muster::low_rank_add(shape, p, q, -1.0f, residual);
    for (std::size_t i = 0; i < 216; ++i) lacking[i] += residual[i];
    for (std::size_t i = 0; i < 216; ++i) sum[i] += part[i];
    for (std::size_t i = 0; i < q.size(); ++i) q_sum[i] += q[i];
  }
  muster::low_rank_add(shape, p, q_sum, 1.0f, lacking);
  CHECK(squared_distance(sum, lacking) < 1e-9 * squares(sum));
}

TEST_CASE("a gradient of zeros does not end PowerSGD") {
  const muster::low_rank_shape shape{6, 8, 2};
  auto q = start(shape, 1);
  const auto first = q;
  const matrix zeros(48);
  CHECK(approximate(shape, zeros, q) == zeros);
  CHECK(q == matrix(16));
  muster::low_rank_refill(shape, 1, q);
  CHECK(q == first);
  muster::low_rank_refill(shape, 2, q);  // nonzero columns do not change
  CHECK(q == first);
}

TEST_CASE("what is small, one-dimensional or of the wrong size") {
  CHECK(!muster::low_rank_shape{1, 100, 2}.pays());
  CHECK(!muster::low_rank_shape{100, 1, 2}.pays());
  CHECK(!muster::low_rank_shape{4, 4, 2}.pays());
  CHECK(muster::low_rank_shape{16, 27, 2}.pays());
  CHECK(muster::low_rank_shape{3, 100, 8}.used() == 3);
  const muster::low_rank_shape shape{6, 8, 2};
  matrix m(48), p(12), q(15);
  CHECK_THROWS_AS(muster::low_rank_left(shape, m, q, p), muster::configuration_error);
  CHECK_THROWS_AS(muster::orthonormalise(shape, q), muster::configuration_error);
}
