// Stochastic gradient descent over spans.
#pragma once

#include <concepts>
#include <cstddef>

#include <muster/core/update/step.hpp>

namespace muster { inline namespace v0 {

/// One step of SGD, element by element, as PyTorch's torch.optim.SGD defines it with dampening 0
/// (https://pytorch.org/docs/stable/generated/torch.optim.SGD.html):
///
///     g <- gradient + decay * parameter
///     v <- momentum * v + g
///     parameter <- parameter - learning_rate * (nesterov ? g + momentum * v : v)
///
/// A velocity of zeros before the first step gives PyTorch's first step. Without a momentum there is no velocity.
template <std::floating_point T>
struct sgd_step {
  using value = T;
  T learning_rate{};
  T momentum{};           ///< share of the velocity that stays
  bool nesterov = false;  ///< steps along gradient + momentum * velocity instead of along the velocity
  T decay{};              ///< adds decay * parameter to the gradient, the gradient of decay / 2 * |parameters|^2

  /// As `update_step` has them: arrays of state, and the loop, over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return momentum == T{0} ? 0 : 1; }
  /// The choices are made once outside the loops, so that these have no branch and compilers vectorise them. constexpr
  /// lets the kernels of devices call it too, an element at a time.
  constexpr void run(std::size_t size, T* parameters, const T* gradients, T* velocities, T*) const {
    if (states() == 0)
      plain(size, parameters, gradients, *this);
    else if (nesterov)
      with_momentum<true>(size, parameters, gradients, velocities, *this);
    else
      with_momentum<false>(size, parameters, gradients, velocities, *this);
  }

 private:
  // The step by value: no element can be one of its numbers.
  template <bool Nesterov>
  static constexpr void with_momentum(std::size_t size, T* __restrict__ parameters, const T* __restrict__ gradients,
                                      T* __restrict__ velocities, const sgd_step step) {
    for (std::size_t i = 0; i < size; ++i) {
      const T gradient = gradients[i] + step.decay * parameters[i];
      const T velocity = step.momentum * velocities[i] + gradient;
      velocities[i] = velocity;
      parameters[i] -= step.learning_rate * (Nesterov ? gradient + step.momentum * velocity : velocity);
    }
  }
  static constexpr void plain(std::size_t size, T* __restrict__ parameters, const T* __restrict__ gradients,
                              const sgd_step step) {
    for (std::size_t i = 0; i < size; ++i) {
      parameters[i] -= step.learning_rate * (gradients[i] + step.decay * parameters[i]);
    }
  }
};
static_assert(update_step<sgd_step<float>>);

}}  // namespace muster::v0
