// How far a training is: what schedules go by.
#pragma once

#include <cstdint>

namespace muster { inline namespace v0 {

/// How far the training is when a step begins.
struct training_position {
  std::uint64_t step = 0;  ///< steps done, over all epochs; 0 at the first
  double epoch = 0.0;      ///< epochs done, with the fraction of the present one: 2.5 in the middle of the third
};

}}  // namespace muster::v0
