// The settings of ps.
#pragma once

#include <muster/core/env.hpp>

/// What parameter servers read, and the compression of gradients, which are pushed too. `--help` describes each.
namespace muster::inline v0::setting {

extern const setting_info servers, standby, replicas, consistency, compress;

}  // namespace muster::inline v0::setting
