// The settings of the training part.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// The settings for optimizers, shares of batches, the order of sums, timelines, metrics and event files. `--help-all`
/// describes each setting.
extern const setting_info optimizer, balance, virtual_shards, reproducible, trace, metrics, tensorboard;

}}}  // namespace muster::v0::setting

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
