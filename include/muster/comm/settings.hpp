// The settings of comm.
#pragma once

#include <muster/core/env.hpp>

/// What the job, its launcher and its transports are chosen by. `--help` describes each.
namespace muster::inline v0::setting {

extern const setting_info transport, between, ranks, job, rendezvous, token, host, algorithm, profile, timeout, check,
    progress, cma, pin, interface, connections, streams, heartbeat, missed_heartbeats, checksum, elastic,
    quorum_timeout, remote_servers, role;

}  // namespace muster::inline v0::setting
