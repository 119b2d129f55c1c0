// The settings of the training part.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// The settings for optimizers, shares of batches, the order of sums, timelines and metrics. `--help-all` describes
/// each setting.
extern const setting_info optimizer, balance, virtual_shards, trace, metrics;

}}}  // namespace muster::v0::setting

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
