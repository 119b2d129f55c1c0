#include "connect.hpp"

#include <numeric>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/hash.hpp>

#include "../../../core/text.hpp"
#include "../shm/connect.hpp"
#include "transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// In a group of its own, before the one that is to be.
std::vector<std::uint64_t> hosts_of_all(transport& between, std::uint64_t mine, seconds timeout) {
  std::vector<int> all(static_cast<std::size_t>(between.size()));
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::uint64_t> hosts(all.size());
  constexpr std::uint64_t id = ~std::uint64_t{0};
  // What goes between hosts has nothing to prepare: neither tcp nor mpi.
  group ranks(between.subgroup({all, id, hosts, deadline_after(timeout)}), {.timeout = timeout});
  allgather(ranks, std::span(&mine, 1), hosts);
  return hosts;
}

}  // namespace

std::unique_ptr<transport> connect_hierarchical(std::unique_ptr<transport> between, const settings& configuration,
                                                const launch_env& launch) {
  const seconds timeout(configuration.positive(setting::timeout));
  const std::uint64_t mine = digest().add(host_identity(configuration)).value();
  host_map hosts(hosts_of_all(*between, mine, timeout));
  const int rank = between->rank();
  std::unique_ptr<shm_transport> within;
  if (const auto here = static_cast<int>(hosts.neighbours(rank).size()); here > 1)
    within = connect_host(configuration, launch, hosts.place(rank), here, "/" + hex(mine, 0));
  return std::make_unique<hierarchical_transport>(std::move(between), std::move(within), std::move(hosts));
}

}}}  // namespace muster::v0::detail
