// The settings of train.
#pragma once

#include <muster/core/env.hpp>

/// What optimizers and timelines read. `--help` describes each.
namespace muster::inline v0::setting {

extern const setting_info optimizer, trace;

}  // namespace muster::inline v0::setting
