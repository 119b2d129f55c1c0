// AdaGrad over spans.
#pragma once

#include <concepts>
#include <cstddef>

#include <muster/core/update/update_step.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A step of AdaGrad (Duchi, Hazan and Singer 2011, https://jmlr.org/papers/v12/duchi11a.html), as PyTorch's
/// torch.optim.Adagrad defines it without decay of the rate: s <- s + g^2, parameter <- parameter - learning_rate * g /
/// (sqrt(s) + epsilon). Its state is s.
template <std::floating_point T>
struct adagrad_step {
  using value = T;
  T learning_rate{};
  T epsilon = T(1e-10);  ///< added to the root
  T decay{};             ///< adds decay * parameter to the gradient

  /// Implements `update_step`: the number of state arrays, and the loop over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 1; }
  constexpr void run(std::size_t count, T* __restrict__ parameters, const T* __restrict__ gradients,
                     T* __restrict__ squares, T*) const {
    const adagrad_step step = *this;  // a copy, which no element can alias
    for (std::size_t i = 0; i < count; ++i) {
      const T gradient = gradients[i] + step.decay * parameters[i];
      const T square = squares[i] + gradient * gradient;
      squares[i] = square;
      parameters[i] -= step.learning_rate * gradient / (detail::square_root(square) + step.epsilon);
    }
  }
};
static_assert(update_step<adagrad_step<float>>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
