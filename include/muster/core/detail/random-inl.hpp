#pragma once

#include <muster/core/random.hpp>

#include <cmath>
#include <numbers>

#include <muster/core/inline.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE double random_stream::normal() noexcept {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
