// What all updates ask of their spans.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

/// Throws configuration_error unless there are as many gradients, values and states as there are parameters.
inline void require_one_each(std::size_t parameters, std::initializer_list<std::size_t> others) {
  for (const std::size_t other : others) {
    if (other == parameters) continue;
    throw configuration_error("cannot update " + std::to_string(parameters) + " parameters with " +
                              std::to_string(other) +
                              " gradients, values or states (one of each is needed); pass spans of one length");
  }
}

}  // namespace muster::inline v0::detail
