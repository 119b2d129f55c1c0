// Stochastic gradient descent over spans.
#pragma once

#include <concepts>
#include <cstddef>

#include <muster/core/update/update_step.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A step of SGD, element by element, as PyTorch's torch.optim.SGD defines it with dampening 0
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
  T momentum{};           ///< decay rate of the velocity
  bool nesterov = false;  ///< steps along gradient + momentum * velocity instead of along the velocity
  T decay{};              ///< adds decay * parameter to the gradient, the gradient of decay / 2 * |parameters|^2

  /// Implements `update_step`: the number of state arrays, and the loop over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return momentum == T{0} ? 0 : 1; }
  /// Branches once outside the loops, so that the loops have no branch and compilers vectorise them. constexpr allows
  /// the kernels of devices to call it too, for one element at a time.
  constexpr void run(std::size_t count, T* parameters, const T* gradients, T* velocities, T*) const {
    if (states() == 0)
      plain(count, parameters, gradients, *this);
    else if (nesterov)
      with_momentum<true>(count, parameters, gradients, velocities, *this);
    else
      with_momentum<false>(count, parameters, gradients, velocities, *this);
  }

 private:
  // The loops take the step by value, which no element can alias.
  template <bool Nesterov>
  static constexpr void with_momentum(std::size_t count, T* __restrict__ parameters, const T* __restrict__ gradients,
                                      T* __restrict__ velocities, const sgd_step step) {
    for (std::size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] + step.decay * parameters[i];
      const T velocity = step.momentum * velocities[i] + gradient;
      velocities[i] = velocity;
      parameters[i] -= step.learning_rate * (Nesterov ? gradient + step.momentum * velocity : velocity);
    }
  }
  static constexpr void plain(std::size_t count, T* __restrict__ parameters, const T* __restrict__ gradients,
                              const sgd_step step) {
    for (std::size_t i = 0; i < count; ++i) {
      parameters[i] -= step.learning_rate * (gradients[i] + step.decay * parameters[i]);
    }
  }
};
static_assert(update_step<sgd_step<float>>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
