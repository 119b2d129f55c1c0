// The settings of comm.
#pragma once

#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace setting {

/// The job, its launcher and its transports. `--help-all` describes each; src/comm/comm_settings.cpp has values and
/// limits.
extern const setting_info transport, between, ranks, job, rendezvous, token, host, algorithm, timeout, check, progress,
    pin, interface, connections, heartbeat, missed_heartbeats, checksum, elastic, quorum_timeout, store_program,
    remote_servers, role, flight_recorder;

}}}  // namespace muster::v0::setting

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
