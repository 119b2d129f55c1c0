// Steps that replace parameters or add to them, for pushes to a parameter server that are not gradients.
#pragma once

#include <concepts>
#include <cstddef>

#include <muster/core/update/update_step.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// The step parameters[i] = values[i].
template <std::floating_point T>
struct assign_step {
  using value = T;

  /// Implements `update_step`: the number of state arrays, and the loop over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 0; }
  constexpr void run(std::size_t count, T* __restrict__ parameters, const T* __restrict__ values, T*, T*) const {
    for (std::size_t i = 0; i < count; ++i) parameters[i] = values[i];
  }
};
static_assert(update_step<assign_step<float>>);

/// The step parameters[i] += weight * values[i].
template <std::floating_point T>
struct add_step {
  using value = T;
  T weight{1};

  /// Implements `update_step`: the number of state arrays, and the loop over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 0; }
  constexpr void run(std::size_t count, T* __restrict__ parameters, const T* __restrict__ values, T*, T*) const {
    const T factor = weight;  // a copy, which no element can alias
    for (std::size_t i = 0; i < count; ++i) parameters[i] += factor * values[i];
  }
};
static_assert(update_step<add_step<float>>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
