// Adam and AdamW over spans.
#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/update/lengths.hpp>

namespace muster::inline v0 {

/// The numbers of one step of Adam.
template <std::floating_point T>
struct adam_step {
  double learning_rate{};
  double beta1 = 0.9;       ///< share of the mean of gradients that stays
  double beta2 = 0.999;     ///< share of the mean of their squares that stays
  double epsilon = 1e-8;    ///< added to the root
  double decay = 0;         ///< weight decay
  bool decoupled = true;    ///< AdamW: parameters shrink by learning_rate * decay; false adds decay * parameter to the
                            ///< gradient, as Adam does
  std::uint64_t count = 1;  ///< the how-manyth step it is, from 1: the means begin as zeros and are corrected for it
};

namespace detail {

/// What is the same for all elements.
template <std::floating_point T>
struct adam_factors {
  T beta1, rest1, beta2, rest2, rate, root, epsilon, shrink, penalty;

  constexpr explicit adam_factors(const adam_step<T>& step)
      : beta1(static_cast<T>(step.beta1)),
        rest1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        rest2(static_cast<T>(1 - step.beta2)),
        rate(static_cast<T>(step.learning_rate / (1 - std::pow(step.beta1, static_cast<double>(step.count))))),
        root(static_cast<T>(1 / std::sqrt(1 - std::pow(step.beta2, static_cast<double>(step.count))))),
        epsilon(static_cast<T>(step.epsilon)),
        shrink(static_cast<T>(step.decoupled ? 1 - step.learning_rate * step.decay : 1)),
        penalty(static_cast<T>(step.decoupled ? 0 : step.decay)) {}
};

template <std::floating_point T>
constexpr void adam_all(T* __restrict__ parameters, const T* __restrict__ gradients, T* __restrict__ means,
                        T* __restrict__ squares, std::size_t size, const adam_factors<T> by) {
  for (std::size_t i = 0; i < size; ++i) {
    const T gradient = gradients[i] + by.penalty * parameters[i];
    const T mean = by.beta1 * means[i] + by.rest1 * gradient;
    const T square = by.beta2 * squares[i] + by.rest2 * gradient * gradient;
    means[i] = mean;
    squares[i] = square;
    parameters[i] = by.shrink * parameters[i] - by.rate * mean / (std::sqrt(square) * by.root + by.epsilon);
  }
}

}  // namespace detail

/// One step of Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980) or AdamW (Loshchilov and Hutter 2019,
/// https://arxiv.org/abs/1711.05101), as PyTorch's torch.optim.Adam and AdamW define it:
///
///     g <- gradient + (decoupled ? 0 : decay * parameter)
///     m <- beta1 m + (1 - beta1) g;  s <- beta2 s + (1 - beta2) g^2
///     parameter <- (decoupled ? 1 - learning_rate * decay : 1) * parameter
///                  - learning_rate * m / (1 - beta1^count) / (sqrt(s / (1 - beta2^count)) + epsilon)
///
/// All spans have one length, or configuration_error is thrown; they do not overlap.
template <std::floating_point T>
void adam_update(std::span<T> parameters, std::span<const T> gradients, std::span<T> means, std::span<T> squares,
                 const adam_step<T>& step) {
  detail::require_one_each(parameters.size(), {gradients.size(), means.size(), squares.size()});
  detail::adam_all(parameters.data(), gradients.data(), means.data(), squares.data(), parameters.size(),
                   detail::adam_factors<T>(step));
}

}  // namespace muster::inline v0
