// The settings of elastic jobs.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// The settings of elastic sessions, and the mode of training (`--mode`), which not every session supports.
/// `--help-all` describes each setting.
extern const setting_info min_ranks, max_ranks, slow_ranks, slow_factor, slow_steps, mode;

}}}  // namespace muster::v0::setting

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
