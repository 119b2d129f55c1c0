// The arithmetic of a backward pass of fully connected layers, for the benchmarks of hidden communication.
#pragma once

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace bench {

/// The gradient for one layer: slopes^T x inputs, [outputs x inputs], over the rows of a batch. Constructed once and
/// used for every layer.
class outer_products {
 public:
  static constexpr std::size_t outputs = 256, inputs = 512;

  outer_products() : slopes_(most_rows * outputs), values_(most_rows * inputs) {
    std::minstd_rand random(1);
    std::uniform_real_distribution<float> uniform(-0.5f, 0.5f);
    for (float& x : slopes_) x = uniform(random);
    for (float& x : values_) x = uniform(random);
  }

  // Overwrites `into`, strip after strip: the gradient for one output stays in the first-level cache while all rows are
  // added.
  void gradient(std::span<float> into, std::size_t rows) const {
    for (std::size_t out = 0; out < outputs; ++out) {
      float* const __restrict__ strip = into.data() + out * inputs;
      std::fill_n(strip, inputs, 0.0f);
      for (std::size_t row = 0; row < rows; ++row) {
        const float slope = slopes_[row % most_rows * outputs + out];
        const float* const __restrict__ x = values_.data() + row % most_rows * inputs;
        for (std::size_t in = 0; in < inputs; ++in) strip[in] += slope * x[in];
      }
    }
  }

 private:
  static constexpr std::size_t most_rows = 64;  // Rows of a batch, repeated when the batch has more.

  std::vector<float> slopes_, values_;
};

}  // namespace bench
