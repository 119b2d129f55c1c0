#include "kernels.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>

#include "catch.hpp"

namespace {

// The same random samples as a dense and as a sparse data set, and a model to evaluate on them.
struct fixture {
  fixture(std::uint64_t seed, std::size_t rows, std::size_t features) : random(seed) {
    std::vector<std::vector<float>> table(rows, std::vector<float>(features));
    std::size_t entries = 0;
    for (auto& row : table) {
      for (auto& value : row) {
        if (random.uniform() < 0.4) value = static_cast<float>(random.normal());
        entries += value != 0.0f;
      }
    }
    auto as_dense = muster::data::dataset_builder::dense("dense", rows, features);
    auto as_sparse = muster::data::dataset_builder::sparse("sparse", rows, features, entries);
    std::size_t k = 0;
    for (std::size_t i = 0; i < rows; ++i) {
      targets.push_back(random.below(2) == 0 ? -1.0f : 1.0f);
      for (std::size_t j = 0; j < features; ++j) {
        as_dense.row(i)[j] = table[i][j];
        if (table[i][j] == 0.0f) continue;
        as_sparse.indices()[k] = static_cast<std::uint32_t>(j);
        as_sparse.values()[k++] = table[i][j];
      }
      as_sparse.offsets()[i + 1] = k;
    }
    dense = as_dense.finish(1);
    sparse = as_sparse.finish(1);
    for (std::size_t j = 0; j < features; ++j) weights.push_back(static_cast<float>(0.3 * random.normal()));
    bias = static_cast<float>(random.normal());
  }

  [[nodiscard]] std::vector<double> parameters() const {
    std::vector<double> all(weights.begin(), weights.end());
    all.push_back(static_cast<double>(bias));
    return all;
  }

  muster::random_stream random;
  muster::dataset dense, sparse;
  std::vector<float> targets;
  std::vector<float> weights;
  float bias = 0;
};

// Computes the summed log-loss in double precision by its definition; the last parameter is the bias.
double naive_loss(const fixture& f, const std::vector<muster::sample_id>& samples, const std::vector<double>& at,
                  std::uint64_t* correct = nullptr) {
  double loss = 0;
  for (const auto id : samples) {
    double output = at.back();
    const auto row = f.dense.row(id);
    for (std::size_t j = 0; j < row.size(); ++j) output += static_cast<double>(row[j]) * at[j];
    const double margin = static_cast<double>(f.targets[id]) * output;
    loss += std::log(1.0 + std::exp(-margin));
    if (correct != nullptr) *correct += margin > 0;
  }
  return loss;
}

// Computes the gradient by central differences. The error is O(h^2) + O(epsilon / h), about 1e-9 here.
std::vector<double> numeric_gradient(const fixture& f, const std::vector<muster::sample_id>& samples) {
  constexpr double h = 1e-5;
  auto at = f.parameters();
  std::vector<double> gradient(at.size());
  for (std::size_t j = 0; j < at.size(); ++j) {
    const double here = at[j];
    at[j] = here + h;
    const double above = naive_loss(f, samples, at);
    at[j] = here - h;
    gradient[j] = (above - naive_loss(f, samples, at)) / (2 * h);
    at[j] = here;
  }
  return gradient;
}

}  // namespace

TEST_CASE("loss, hits and gradient are those of the definition, for dense and sparse samples") {
  const std::uint64_t seed = GENERATE(1u, 2u, 3u);
  const std::size_t features = GENERATE(1u, 7u, 16u, 37u);
  const std::size_t count = GENERATE(0u, 1u, 2u, 7u, 8u, 29u);
  const bool is_sparse = GENERATE(false, true);
  CAPTURE(seed, features, count, is_sparse);
  fixture f(seed, 50, features);
  std::vector<muster::sample_id> samples(count);
  for (auto& id : samples) id = f.random.below(50);  // in any order, with repetitions

  const auto& data = is_sparse ? f.sparse : f.dense;
  // The model is wider than the data, as if only the other set had the last features.
  std::vector<float> weights = f.weights;
  weights.resize(features + 3, 100.0f);
  std::vector<float> gradient(features + 3, 1.0f);  // the kernel adds to this gradient
  float bias_gradient = 1.0f;
  const float scale = 0.125f;
  const auto sums =
      logistic::add_gradient(data, samples, f.targets, {weights, f.bias}, scale, {std::span(gradient), &bias_gradient});

  std::uint64_t correct = 0;
  const double loss = naive_loss(f, samples, f.parameters(), &correct);
  CHECK(sums.loss == Approx(loss).epsilon(1e-5).margin(1e-5));
  CHECK(sums.correct == correct);
  const auto expected = numeric_gradient(f, samples);
  const double tolerance = 1e-6 * static_cast<double>(count + 1);
  for (std::size_t j = 0; j < features; ++j) {
    CHECK(std::abs(static_cast<double>(gradient[j]) - 1.0 - 0.125 * expected[j]) < tolerance);
  }
  CHECK(std::abs(static_cast<double>(bias_gradient) - 1.0 - 0.125 * expected.back()) < tolerance);
  CHECK(std::count(gradient.end() - 3, gradient.end(), 1.0f) == 3);
}

TEST_CASE("a gradient and a loss have the same bits for any number of threads") {
  const bool is_sparse = GENERATE(false, true);
  const std::size_t features = GENERATE(1, 37, 300);
  const std::size_t count = GENERATE(0, 1, 31, 203);
  CAPTURE(features, count, is_sparse);
  fixture f(5, 50, features);
  std::vector<muster::sample_id> samples(count);
  for (auto& id : samples) id = f.random.below(50);
  const auto& data = is_sparse ? f.sparse : f.dense;
  const auto run = [&](int threads) {
    const examples::rank_tasks tasks(threads);
    std::vector<float> gradient(features + 1, 1.0f);
    const auto sums = logistic::add_gradient(data, samples, f.targets, {f.weights, f.bias}, 0.125f,
                                             {std::span(gradient).first(features), &gradient.back()}, tasks);
    const auto seen = logistic::evaluate(data, 0, 50, f.targets, {f.weights, f.bias}, tasks);
    return std::tuple(gradient, sums.loss, sums.correct, seen.loss, seen.correct);
  };
  const auto alone = run(1);
  CHECK(run(2) == alone);
  CHECK(run(3) == alone);
}

TEST_CASE("evaluation sums up a range of samples without a gradient") {
  const bool is_sparse = GENERATE(false, true);
  const fixture f(7, 43, 19);
  const auto& data = is_sparse ? f.sparse : f.dense;
  std::vector<muster::sample_id> all(43);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::uint64_t correct = 0;
  const double loss = naive_loss(f, all, f.parameters(), &correct);
  logistic::totals sums;
  for (const auto& [first, last] : {std::pair{0, 10}, std::pair{10, 10}, std::pair{10, 43}}) {
    sums += logistic::evaluate(data, static_cast<std::size_t>(first), static_cast<std::size_t>(last), f.targets,
                               {f.weights, f.bias});
  }
  CHECK(sums.loss == Approx(loss).epsilon(1e-5));
  CHECK(sums.correct == correct);
}

TEST_CASE("margins of any size give a finite loss, and those that are no numbers do not") {
  const bool is_sparse = GENERATE(false, true);
  fixture f(11, 9, 4);
  const auto& data = is_sparse ? f.sparse : f.dense;
  std::fill(f.weights.begin(), f.weights.end(), 0.0f);
  f.bias = 1e4f;
  const double wrong = static_cast<double>(std::count(f.targets.begin(), f.targets.end(), -1.0f));
  CHECK(logistic::evaluate(data, 0, 9, f.targets, {f.weights, f.bias}).loss == Approx(1e4 * wrong));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    CHECK(std::isnan(logistic::evaluate(data, 0, 9, f.targets, {f.weights, bad}).loss));
  }
}
