// The settings of elastic.
#pragma once

#include <muster/core/env.hpp>

/// What elastic sessions read, and the mode of training, which they look at. `--help` describes each.
namespace muster::inline v0::setting {

extern const setting_info min_ranks, max_ranks, slow_ranks, slow_factor, slow_steps, mode;

}  // namespace muster::inline v0::setting
