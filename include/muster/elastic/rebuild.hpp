// Builds the connections of a generation from its record.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include <muster/comm/transports/shm/host.hpp>
#include <muster/comm/transports/tcp/connect_tcp.hpp>
#include <muster/elastic/membership/record.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The inputs from which a process builds every generation.
struct transport_config {
  const settings* configuration;
  std::shared_ptr<segment> memory;
  std::string token;
  bool any_source = false;  ///< true: receives from any source are needed, which not every transport supports
};

struct built_group {
  std::unique_ptr<muster::transport> transport;
  std::shared_ptr<shm_host> host;  ///< set if all or some members share memory
};

/// Returns the endpoints at which this member waits for the others, as the record contains them: the addresses of its
/// listeners, and a mark if the MPI that was requested can no longer connect this member. If one member has the mark,
/// all members use another transport.
[[nodiscard]] std::string listener_endpoints(const tcp_listeners& listeners, const settings& configuration);

/// Connects the members of the record, as the member with this rank. `listeners` are the listeners whose endpoints the
/// record contains. Throws peer_failure when `is_canceled` returns true, and timeout_error after `--timeout`. Throws
/// configuration_error for a transport that cannot connect members on these hosts.
[[nodiscard]] built_group connect_members(const transport_config& config, const elastic::generation_record& group,
                                          int rank, tcp_listeners listeners, const std::function<bool()>& is_canceled);

}}}  // namespace muster::v0::detail
