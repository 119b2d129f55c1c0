#pragma once

#include <muster/comm/transports/hierarchical/connect_hierarchical.hpp>

#include <numeric>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/transports/hierarchical/hierarchical_transport.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
// Returns every rank's host. The exchange uses a temporary group, which is closed before the transport's first
// group is made.
inline std::vector<std::uint64_t> hosts_of_all(transport& network, std::uint64_t mine, seconds timeout) {
  std::vector<int> all_ranks(static_cast<std::size_t>(network.size()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  std::vector<std::uint64_t> hosts(all_ranks.size());
  constexpr std::uint64_t id = ~std::uint64_t{0};
  // The transports between hosts, tcp and mpi, need no `prepare` before a subgroup.
  group temporary(network.subgroup({all_ranks, id, hosts, deadline_after(timeout)}), {.timeout = timeout});
  allgather(temporary, std::span(&mine, 1), hosts);
  return hosts;
}

MUSTER_INLINE std::unique_ptr<transport> connect_hierarchical(std::unique_ptr<transport> network,
                                                              const settings& configuration, const launch_env& launch) {
  const seconds timeout(configuration.number(setting::timeout));
  const std::uint64_t mine = digest().add(host_identity(configuration)).value();
  host_map hosts(hosts_of_all(*network, mine, timeout));
  const int rank = network->rank();
  std::unique_ptr<shm_transport> host_transport;
  if (const auto ranks_on_host = static_cast<int>(hosts.neighbours(rank).size()); ranks_on_host > 1)
    host_transport = connect_host(configuration, launch, hosts.local_rank(rank), ranks_on_host, "/" + hex(mine, 0));
  return std::make_unique<hierarchical_transport>(std::move(network), std::move(host_transport), std::move(hosts));
}

}}}  // namespace muster::v0::detail
