// From a record to connections.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include "../comm/transports/shm/host.hpp"
#include "../comm/transports/tcp/connect.hpp"
#include "membership/record.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What every generation of a process is built from.
struct transport_config {
  const settings* configuration;
  std::shared_ptr<segment> memory;
  std::string token;
  bool any_source = false;  ///< receives from any source are needed, which not every transport has
};

struct built_group {
  std::unique_ptr<muster::transport> transport;
  std::shared_ptr<shm_host> host;  ///< where all or some share memory
};

/// Where this member waits for the others, as the record has it: at these listeners, and whether MPI, where it was
/// asked for, can still connect it. One that it cannot has all of them use another transport.
[[nodiscard]] std::string listener_endpoints(const tcp_listeners& listeners, const settings& configuration);

/// Connects the members of the record, of which this is one of that rank; `listeners` are those that the record knows.
/// Gives up when `given_up` says so: with peer_failure, or timeout_error by `--timeout`. Throws configuration_error for
/// a transport that cannot join members of these hosts.
[[nodiscard]] built_group connect_members(const transport_config& config, const elastic::generation_record& group,
                                          int rank, tcp_listeners listeners, const std::function<bool()>& given_up);

}}}  // namespace muster::v0::detail
