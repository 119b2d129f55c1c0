// Values that replace parameters or are added to them: what a parameter server does with a push that is no gradient.
#pragma once

#include <concepts>
#include <cstddef>

#include <muster/core/update/step.hpp>

namespace muster { inline namespace v0 {

/// parameters[i] = values[i].
template <std::floating_point T>
struct assign_step {
  using value = T;

  /// As `update_step` has them: arrays of state, and the loop, over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 0; }
  constexpr void run(std::size_t size, T* __restrict__ parameters, const T* __restrict__ values, T*, T*) const {
    for (std::size_t i = 0; i < size; ++i) parameters[i] = values[i];
  }
};
static_assert(update_step<assign_step<float>>);

/// parameters[i] += weight * values[i].
template <std::floating_point T>
struct add_step {
  using value = T;
  T weight{1};

  /// As `update_step` has them: arrays of state, and the loop, over arrays that do not overlap.
  [[nodiscard]] constexpr std::size_t states() const noexcept { return 0; }
  constexpr void run(std::size_t size, T* __restrict__ parameters, const T* __restrict__ values, T*, T*) const {
    const T by = weight;  // no element can be it
    for (std::size_t i = 0; i < size; ++i) parameters[i] += by * values[i];
  }
};
static_assert(update_step<add_step<float>>);

}}  // namespace muster::v0
