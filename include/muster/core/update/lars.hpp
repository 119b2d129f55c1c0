// Layer-wise adaptive rate scaling over spans.
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>

#include <muster/core/lanes.hpp>
#include <muster/core/update/step.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// The sum of squares, in double precision.
[[nodiscard]] inline double sum_of_squares(const float* values, std::size_t size) {
  const auto add = [=](std::size_t i, four_doubles& sums) {
    four_floats four;
    load(values + i, four);
    const four_doubles wide = __builtin_convertvector(four, four_doubles);
    sums += wide * wide;
  };
  return sum_in_lanes<four_doubles, double>(
      0, size, add, [=](std::size_t i) { return static_cast<double>(values[i]) * static_cast<double>(values[i]); });
}
[[nodiscard]] inline double sum_of_squares(const double* values, std::size_t size) {
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += values[i] * values[i];
  return sum;
}

}  // namespace detail

/// One step of LARS for one layer (You, Gitman and Ginsburg 2017, https://arxiv.org/abs/1708.03888, algorithm 1):
///
///     rate <- learning_rate * trust * |w| / (|g| + decay * |w|)
///     v <- momentum * v + rate * (g + decay * w);  w <- w - v
///
/// The norms are over the spans, which therefore are one tensor. Where either norm is 0, or `trust` is, or |g| is so
/// small that the rate would be infinite, the rate is the learning rate: that is how biases and batch normalisation are
/// stepped, with a decay of 0. A diverged gradient shows: NaN in is NaN out. Two passes. Its state is v. Not for
/// devices: their threads have an element each.
template <std::floating_point T>
struct lars_step {
  using value = T;
  T learning_rate{};
  T momentum = T(0.9);  ///< share of the velocity that stays
  T decay{};            ///< weight decay
  T trust = T(0.001);   ///< the paper's eta: by how much of its norm a layer may change; 0: no scaling

  /// As `update_step` has them: arrays of state, and the loop, over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 1; }
  void run(std::size_t size, T* __restrict__ parameters, const T* __restrict__ gradients, T* __restrict__ velocities,
           T*) const {
    const lars_step step = *this;  // no element can be one of its numbers
    T rate = step.learning_rate;
    if (step.trust != T{0}) {
      const double norm = detail::square_root(detail::sum_of_squares(parameters, size));
      const double slope = detail::square_root(detail::sum_of_squares(gradients, size));
      if (norm > 0 && slope > 0) {
        const double scaled = static_cast<double>(step.trust) * norm /
                              (slope + static_cast<double>(step.decay) * norm) * static_cast<double>(rate);
        if (!(scaled > static_cast<double>(std::numeric_limits<T>::max()))) rate = static_cast<T>(scaled);
      }
    }
    for (std::size_t i = 0; i < size; ++i) {
      const T velocity = step.momentum * velocities[i] + rate * (gradients[i] + step.decay * parameters[i]);
      velocities[i] = velocity;
      parameters[i] -= velocity;
    }
  }
};
static_assert(update_step<lars_step<float>>);

}}  // namespace muster::v0
