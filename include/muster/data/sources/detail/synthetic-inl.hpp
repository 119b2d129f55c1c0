#pragma once

#include <muster/data/sources/synthetic.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/parallel.hpp>

// Results are equal bit for bit on all machines: the code uses only operations that IEEE 754 rounds exactly (no exp, no
// pow, no fused multiplications: see CMakeLists.txt), and sums have a fixed order.

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {

// Separates these random numbers from the numbers of other uses of the seed.
inline constexpr std::uint64_t purpose = 0x657073696c6f6e00ULL;
inline constexpr std::uint64_t model_stream = std::numeric_limits<std::uint64_t>::max();
inline constexpr std::size_t lanes = 8;
static_assert(epsilon_features % lanes == 0);

// Returns an approximately normal number with mean 0: the sum of four uniform numbers from one word. The result is an
// integer whose magnitude is less than 2^18.
inline int near_normal(std::uint64_t word) {
  return static_cast<int>((word & 0xffff) + (word >> 16 & 0xffff) + (word >> 32 & 0xffff) + (word >> 48)) - 2 * 0xffff;
}
inline constexpr double near_normal_variance = 4 * (65536.0 * 65536.0 - 1) / 12;

inline double scale_of(std::size_t feature) { return 1 / (1 + static_cast<double>(feature) / 10); }

struct model {
  explicit model(std::uint64_t seed) : key(mix(seed ^ purpose)) {
    random_stream random(key, model_stream);
    double length = 0;
    for (double& weight : weights) {
      weight = near_normal(random());
      length += weight * weight;
    }
    length = std::sqrt(length);
    double signal = 0;  // variance of weights * row, before the row is scaled to unit length
    for (std::size_t j = 0; j < epsilon_features; ++j) {
      weights[j] /= length;
      scales[j] = static_cast<float>(scale_of(j));
      signal += weights[j] * weights[j] * scale_of(j) * scale_of(j) * near_normal_variance;
    }
    // Two jointly normal numbers whose ratio between noise and signal is tan(pi * share) differ in sign in this share
    // of cases (Sheppard 1899, https://doi.org/10.1098/rsta.1899.0003). The share here is 7 of 96. In addition, one
    // label in fifty is flipped, so nine of a hundred labels are wrong. Labels that are flipped far from the border
    // increase the loss, as in the real data set: a linear model reaches an accuracy of 0.89 and a loss of 0.2828,
    // which are MLBench's targets for this data set, at about the same time.
    noise = 0.23316729717019838 * std::sqrt(signal / near_normal_variance);
  }

  // Fills `row` and returns its label.
  float make(std::uint64_t number, std::span<float> row) const {
    random_stream random(key, number);
    for (float& value : row) value = static_cast<float>(near_normal(random()));
    std::array<double, lanes> squares{};
    std::array<double, lanes> products{};
    for (std::size_t j = 0; j < epsilon_features; j += lanes) {
      for (std::size_t k = 0; k < lanes; ++k) {
        row[j + k] *= scales[j + k];
        const double value = row[j + k];
        squares[k] += value * value;
        products[k] += value * weights[j + k];
      }
    }
    double square = 0;
    double product = 0;
    for (std::size_t k = 0; k < lanes; ++k) {
      square += squares[k];
      product += products[k];
    }
    const auto shrink = static_cast<float>(1 / std::sqrt(square));
    for (float& value : row) value *= shrink;
    const bool is_positive = product + noise * near_normal(random()) > 0;
    const bool is_flipped = random.below(50) == 0;
    return is_positive != is_flipped ? 1.0f : -1.0f;
  }

  std::uint64_t key;
  double noise;
  std::array<double, epsilon_features> weights;
  std::array<float, epsilon_features> scales;
};

}  // namespace detail

MUSTER_INLINE dataset synthetic_epsilon(std::size_t row_count, std::uint64_t seed, const epsilon_options& options) {
  if (row_count == 0)
    throw configuration_error("cannot make 0 rows of epsilon (training needs samples); set at least 1 row");
  std::string name = "epsilon:" + std::to_string(row_count);
  if (options.first_row != 0) name += "@" + std::to_string(options.first_row);
  const detail::model seeded_model(seed);
  dataset_builder builder = dataset_builder::dense(std::move(name), row_count, epsilon_features);
  constexpr std::size_t rows_of_task = 128;
  detail::parallel_for((row_count + rows_of_task - 1) / rows_of_task, options.threads, [&](std::size_t task) {
    const std::size_t end = std::min(row_count, (task + 1) * rows_of_task);
    for (std::size_t i = task * rows_of_task; i < end; ++i) {
      builder.labels()[i] = seeded_model.make(options.first_row + i, builder.row(i));
    }
  });
  return builder.finish(options.threads);
}

MUSTER_INLINE std::vector<float> epsilon_model(std::uint64_t seed) {
  const detail::model seeded_model(seed);
  std::vector<float> weights(seeded_model.weights.begin(), seeded_model.weights.end());
  return weights;
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
