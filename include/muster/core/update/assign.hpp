// Values that replace parameters or are added to them: what a parameter server does with a push that is no gradient.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>

#include <muster/core/update/lengths.hpp>

namespace muster::inline v0 {

/// parameters[i] = values[i]. Throws configuration_error when the lengths differ.
template <std::floating_point T>
void assign_update(std::span<T> parameters, std::span<const T> values) {
  detail::require_one_each(parameters.size(), {values.size()});
  std::ranges::copy(values, parameters.begin());
}

/// parameters[i] += weight * values[i]. Throws configuration_error when the lengths differ.
template <std::floating_point T>
void add_update(std::span<T> parameters, std::span<const T> values, T weight = T{1}) {
  detail::require_one_each(parameters.size(), {values.size()});
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += weight * values[i];
}

}  // namespace muster::inline v0
