// The settings of ps.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// Parameter servers, and the compression of gradients and of pushes. `--help-all` describes each.
extern const setting_info servers, standby, replicas, consistency, compress;

}}}  // namespace muster::v0::setting
