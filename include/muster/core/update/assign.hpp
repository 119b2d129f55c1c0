// Values that replace parameters or are added to them: what a parameter server does with a push that is no gradient.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>

#include <muster/core/error.hpp>

namespace muster::inline v0 {

namespace detail {

inline void require_one_each(std::size_t parameters, std::size_t values) {
  if (parameters == values) return;
  throw configuration_error("cannot update " + std::to_string(parameters) + " parameters with " +
                            std::to_string(values) + " values (one of each is needed); pass spans of one length");
}

}  // namespace detail

/// parameters[i] = values[i]. Throws configuration_error when the lengths differ.
template <std::floating_point T>
void assign_update(std::span<T> parameters, std::span<const T> values) {
  detail::require_one_each(parameters.size(), values.size());
  std::ranges::copy(values, parameters.begin());
}

/// parameters[i] += weight * values[i]. Throws configuration_error when the lengths differ.
template <std::floating_point T>
void add_update(std::span<T> parameters, std::span<const T> values, T weight = T{1}) {
  detail::require_one_each(parameters.size(), values.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i] += weight * values[i];
}

}  // namespace muster::inline v0
