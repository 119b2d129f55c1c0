// Layer-wise adaptive rate scaling over spans.
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>

#include <muster/core/lanes.hpp>
#include <muster/core/update/update_step.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// Returns the sum of squares, in double precision.
[[nodiscard]] inline double sum_of_squares(const float* values, std::size_t count) {
  const auto add = [=](std::size_t i, four_doubles& sums) {
    four_floats four;
    load(values + i, four);
    const four_doubles wide = __builtin_convertvector(four, four_doubles);
    sums += wide * wide;
  };
  return sum_in_lanes<four_doubles, double>(
      0, count, add, [=](std::size_t i) { return static_cast<double>(values[i]) * static_cast<double>(values[i]); });
}
[[nodiscard]] inline double sum_of_squares(const double* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return sum;
}

}  // namespace detail

/// A step of LARS for one layer (You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888, algorithm 1):
///
///     rate <- learning_rate * trust * |w| / (|g| + decay * |w|)
///     v <- momentum * v + rate * (g + decay * w);  w <- w - v
///
/// The norms are computed over the spans, which must therefore be one tensor. The rate is the learning rate where
/// either norm is 0, where `trust` is 0, and where |g| is so small that the rate would be infinite. Biases and batch
/// normalisation are updated this way, with a decay of 0. NaN in a gradient propagates to the parameters. Two passes.
/// Its state is v. Not available on devices, where each thread processes a single element.
template <std::floating_point T>
struct lars_step {
  using value = T;
  T learning_rate{};
  T momentum = T(0.9);  ///< decay rate of the velocity
  T decay{};            ///< weight decay
  T trust = T(0.001);   ///< the paper's eta: ratio of a layer's change to its norm; 0: no scaling

  /// Implements `update_step`: the number of state arrays, and the loop over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 1; }
  void run(std::size_t count, T* __restrict__ parameters, const T* __restrict__ gradients, T* __restrict__ velocities,
           T*) const {
    const lars_step step = *this;  // a copy, which no element can alias
    T rate = step.learning_rate;
    if (step.trust != T{0}) {
      const double norm = detail::square_root(detail::sum_of_squares(parameters, count));
      const double slope = detail::square_root(detail::sum_of_squares(gradients, count));
      if (norm > 0 && slope > 0) {
        const double scaled = static_cast<double>(step.trust) * norm /
                              (slope + static_cast<double>(step.decay) * norm) * static_cast<double>(rate);
        if (!(scaled > static_cast<double>(std::numeric_limits<T>::max()))) rate = static_cast<T>(scaled);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      const T velocity = step.momentum * velocities[i] + rate * (gradients[i] + step.decay * parameters[i]);
      velocities[i] = velocity;
      parameters[i] -= velocity;
    }
  }
};
static_assert(update_step<lars_step<float>>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
