// The settings of train.
#pragma once

#include <muster/core/env.hpp>

namespace muster::inline v0::setting {

/// Optimizers and timelines. `--help-all` describes each.
extern const setting_info optimizer, trace;

}  // namespace muster::inline v0::setting
