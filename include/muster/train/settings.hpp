// The settings of train.
#pragma once

#include <muster/core/env.hpp>

namespace muster::inline v0::setting {

/// Optimizers, the order of sums, timelines. `--help-all` describes each.
extern const setting_info optimizer, virtual_shards, trace;

}  // namespace muster::inline v0::setting
