// AdaGrad over spans.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <span>

#include <muster/core/update/lengths.hpp>

namespace muster::inline v0 {

/// The numbers of one step of AdaGrad.
template <std::floating_point T>
struct adagrad_step {
  T learning_rate{};
  T epsilon = T(1e-10);  ///< added to the root
  T decay{};             ///< adds decay * parameter to the gradient
};

namespace detail {

template <std::floating_point T>
constexpr void adagrad_all(T* __restrict__ parameters, const T* __restrict__ gradients, T* __restrict__ squares,
                           std::size_t size, const adagrad_step<T> step) {
  for (std::size_t i = 0; i < size; ++i) {
    const T gradient = gradients[i] + step.decay * parameters[i];
    const T sum = squares[i] + gradient * gradient;
    squares[i] = sum;
    parameters[i] -= step.learning_rate * gradient / (std::sqrt(sum) + step.epsilon);
  }
}

}  // namespace detail

/// One step of AdaGrad (Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html), as PyTorch's
/// torch.optim.Adagrad defines it without decay of the rate: s <- s + g^2, parameter <- parameter - learning_rate * g /
/// (sqrt(s) + epsilon). All spans have one length, or configuration_error is thrown; they do not overlap.
template <std::floating_point T>
void adagrad_update(std::span<T> parameters, std::span<const T> gradients, std::span<T> squares,
                    const adagrad_step<T>& step) {
  detail::require_one_each(parameters.size(), {gradients.size(), squares.size()});
  detail::adagrad_all(parameters.data(), gradients.data(), squares.data(), parameters.size(), step);
}

}  // namespace muster::inline v0
