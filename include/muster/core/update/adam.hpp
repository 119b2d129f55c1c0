// Adam and AdamW over spans.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include <muster/core/update/update_step.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// The factors that are the same for all elements in a step of Adam.
template <std::floating_point T>
struct adam_factors {
  T beta1, rest1, beta2, rest2, rate, root, epsilon, shrink, penalty;

  constexpr void run(std::size_t count, T* __restrict__ parameters, const T* __restrict__ gradients,
                     T* __restrict__ means, T* __restrict__ squares) const {
    const adam_factors factors = *this;  // a copy, which no element can alias
    for (std::size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] + factors.penalty * parameters[i];
      const T mean = factors.beta1 * means[i] + factors.rest1 * gradient;
      const T square = factors.beta2 * squares[i] + factors.rest2 * gradient * gradient;
      means[i] = mean;
      squares[i] = square;
      parameters[i] =
          factors.shrink * parameters[i] - factors.rate * mean / (square_root(square) * factors.root + factors.epsilon);
    }
  }
};

}  // namespace detail

/// A step of Adam (Kingma and Ba 2015, https://arxiv.org/abs/1412.6980) or AdamW (Loshchilov and Hutter 2019,
/// https://arxiv.org/abs/1711.05101), as PyTorch's torch.optim.Adam and AdamW define it:
///
///     g <- gradient + (decoupled ? 0 : decay * parameter)
///     m <- beta1 m + (1 - beta1) g;  s <- beta2 s + (1 - beta2) g^2
///     parameter <- (decoupled ? 1 - learning_rate * decay : 1) * parameter
///                  - learning_rate * m / (1 - beta1^count) / (sqrt(s / (1 - beta2^count)) + epsilon)
///
/// Its states are m and s.
template <std::floating_point T>
struct adam_step {
  using value = T;
  double learning_rate{};
  double beta1 = 0.9;       ///< decay rate of the mean of gradients
  double beta2 = 0.999;     ///< decay rate of the mean of squared gradients
  double epsilon = 1e-8;    ///< added to the root
  double decay = 0;         ///< weight decay
  bool decoupled = true;    ///< AdamW: parameters shrink by learning_rate * decay; false adds decay * parameter to the
                            ///< gradient, as Adam does
  std::uint64_t count = 1;  ///< number of the step, from 1: corrects the means for their start at zero

  /// Implements `update_step`: two state arrays (the means), and the loop with its factors computed once.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 2; }
  [[nodiscard]] detail::adam_factors<T> loop() const {
    return {.beta1 = static_cast<T>(beta1),
            .rest1 = static_cast<T>(1 - beta1),
            .beta2 = static_cast<T>(beta2),
            .rest2 = static_cast<T>(1 - beta2),
            .rate = static_cast<T>(learning_rate / (1 - __builtin_pow(beta1, static_cast<double>(count)))),
            .root = static_cast<T>(1 / detail::square_root(1 - __builtin_pow(beta2, static_cast<double>(count)))),
            .epsilon = static_cast<T>(epsilon),
            .shrink = static_cast<T>(decoupled ? 1 - learning_rate * decay : 1),
            .penalty = static_cast<T>(decoupled ? 0 : decay)};
  }
};
static_assert(update_step<adam_step<float>>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
