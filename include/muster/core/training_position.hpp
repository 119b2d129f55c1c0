// The position of a training, the argument of schedules.
#pragma once

#include <cstdint>

namespace muster { inline namespace v0 {

/// The position of the training when a step begins.
struct training_position {
  std::uint64_t step = 0;  ///< completed steps, over all epochs; 0 at the first step
  double epoch = 0.0;      ///< completed epochs, with the fraction of the current epoch: 2.5 in the middle of the third
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
