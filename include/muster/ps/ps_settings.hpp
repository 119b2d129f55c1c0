// The settings of the parameter server.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// Number of servers, hot spares and replicas, the consistency model, and the codec of gradients and pushes.
/// `--help-all` describes each.
extern const setting_info servers, standby, replicas, consistency, compress;

}}}  // namespace muster::v0::setting

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
