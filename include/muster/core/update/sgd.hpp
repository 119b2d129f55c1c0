// Stochastic gradient descent over spans.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include <muster/core/update/lengths.hpp>

namespace muster::inline v0 {

/// The numbers of one step of stochastic gradient descent.
template <std::floating_point T>
struct sgd_step {
  T learning_rate{};
  T momentum{};           ///< share of the velocity that stays; 0 means that there is no velocity
  T decay{};              ///< adds decay * parameter to the gradient, the gradient of decay / 2 * |parameters|^2
  bool nesterov = false;  ///< steps along gradient + momentum * velocity instead of along the velocity
};

namespace detail {

// The choices are made once outside the loop, so that the loop has no branch and compilers vectorise it. constexpr lets
// the kernels of devices call it too, an element at a time.
template <bool Nesterov, std::floating_point T>
constexpr void sgd_with_momentum(T* __restrict__ parameters, const T* __restrict__ gradients,
                                 T* __restrict__ velocities, std::size_t size, sgd_step<T> step) {
  for (std::size_t i = 0; i < size; ++i) {
    const T gradient = gradients[i] + step.decay * parameters[i];
    const T velocity = step.momentum * velocities[i] + gradient;
    velocities[i] = velocity;
    parameters[i] -= step.learning_rate * (Nesterov ? gradient + step.momentum * velocity : velocity);
  }
}

template <std::floating_point T>
constexpr void sgd_without_momentum(T* __restrict__ parameters, const T* __restrict__ gradients, std::size_t size,
                                    sgd_step<T> step) {
  for (std::size_t i = 0; i < size; ++i) {
    parameters[i] -= step.learning_rate * (gradients[i] + step.decay * parameters[i]);
  }
}

}  // namespace detail

/// One step of SGD, element by element, as PyTorch's torch.optim.SGD defines it with dampening 0
/// (https://pytorch.org/docs/stable/generated/torch.optim.SGD.html):
///
///     g <- gradient + decay * parameter
///     v <- momentum * v + g
///     parameter <- parameter - learning_rate * (nesterov ? g + momentum * v : v)
///
/// A velocity of zeros before the first step gives PyTorch's first step. All spans have one length; `velocities` may be
/// empty when the momentum is 0 and is not touched then. The spans do not overlap. Throws configuration_error when
/// lengths differ.
template <std::floating_point T>
void sgd_update(std::span<T> parameters, std::span<const T> gradients, std::span<T> velocities,
                const sgd_step<T>& step) {
  const bool with_velocity = step.momentum != T{0};
  detail::require_one_each(parameters.size(),
                           {gradients.size(), with_velocity ? velocities.size() : parameters.size()});
  if (!with_velocity) {
    detail::sgd_without_momentum(parameters.data(), gradients.data(), parameters.size(), step);
  } else if (step.nesterov) {
    detail::sgd_with_momentum<true>(parameters.data(), gradients.data(), velocities.data(), parameters.size(), step);
  } else {
    detail::sgd_with_momentum<false>(parameters.data(), gradients.data(), velocities.data(), parameters.size(), step);
  }
}

}  // namespace muster::inline v0
