#pragma once

#include <muster/elastic/rebuild.hpp>

#include <algorithm>
#include <string_view>

#include <muster/comm/bootstrap/transport_choice.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/transports/hierarchical/hierarchical_transport.hpp>
#include <muster/comm/transports/shm/connect_shm.hpp>
#include <muster/comm/transports/tcp/tcp_transport.hpp>
#include <muster/comm/transports/threads.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline host_map hosts_of(const elastic::generation_record& group) {
  std::vector<std::uint64_t> hosts;
  for (const auto& member : group.members) hosts.push_back(member.host);
  return host_map(hosts);
}

inline std::unique_ptr<shm_transport> over_memory(const transport_config& config,
                                                  const elastic::generation_record& group, std::uint64_t host, int rank,
                                                  int rank_count, const std::function<bool()>& is_canceled) {
  // The token distinguishes jobs, and the generation distinguishes their successive rendezvous.
  const std::string name = "muster-elastic." + std::to_string(digest().add(config.token).value()) + "." +
                           std::to_string(group.generation) + "." + std::to_string(host);
  return connect_anew(name, rank, rank_count, config.memory, seconds(config.configuration->number(setting::timeout)),
                      is_canceled);
}

// Mark behind a member's endpoints if MPI can no longer connect it.
inline constexpr std::string_view without_mpi = " no-mpi";

inline std::unique_ptr<transport> over_tcp(const transport_config& config, const elastic::generation_record& group,
                                           int rank, tcp_listeners listeners,
                                           const std::function<bool()>& is_canceled) {
  const tcp_plan plan = plan_of(*config.configuration);
  const auto until = deadline_after(plan.connect_timeout);
  std::vector<std::string> endpoints;
  for (const auto& member : group.members)
    endpoints.push_back(member.endpoints.substr(0, member.endpoints.find(without_mpi)));
  return connect_mesh(plan, rank, endpoints, std::move(listeners),
                      config.token + "/" + std::to_string(group.generation), until, is_canceled);
}

// Returns the registered MPI transport; null if the program's MPI ends when ranks die, or the program has none.
inline const process_transport* surviving_mpi() noexcept {
  const auto* const found = find_registered("mpi");
  return found != nullptr && found->connect_survivors != nullptr ? found : nullptr;
}

inline std::unique_ptr<transport> over_mpi(const transport_config& config, const elastic::generation_record& group,
                                           int rank) {
  std::vector<elastic::member_id> members;
  for (const auto& member : group.members) members.push_back(member.id);
  return surviving_mpi()->connect_survivors(*config.configuration, members, rank, group.generation);
}

// Returns the name of the transport that connects members on these hosts.
inline std::string transport_between(const elastic::generation_record& group, const transport_config& config) {
  const settings& configuration = *config.configuration;
  const auto hosts = hosts_of(group);
  (void)configuration.choice(setting::transport, {"auto", "self", "threads", "shm", "mpi", "tcp", "hierarchical"});
  const auto& requested = configuration.value(setting::transport);
  const auto refuse = [&](const std::string& reason) {
    throw configuration_error(configuration.origin(setting::transport) + " asks for transport " + requested + " (" +
                              reason);
  };
  if (requested == "mpi" && surviving_mpi() == nullptr) {
    refuse(
        "this program's MPI ends the job when a rank dies; Open MPI 5 with ULFM does not); use auto, tcp, shm or "
        "hierarchical");
  }
  if (requested == "self" || requested == "threads")
    refuse("ranks that die and join are connected by shm, tcp or hierarchical); choose shm, tcp, hierarchical or auto");
  const bool has_lost_mpi =
      std::ranges::any_of(group.members, [](const auto& member) { return member.endpoints.ends_with(without_mpi); });
  if (requested == "mpi" && !has_lost_mpi)
    return "mpi";  // also for a single member: other members of the MPI world may not have ended yet
  if (group.members.size() == 1) return "self";
  if (requested == "shm" && !hosts.one_host()) {
    refuse("the job's members are on " + std::to_string(hosts.hosts.size()) + " hosts); use auto, hierarchical or tcp");
  }
  if (requested == "tcp") return "tcp";
  if (hosts.one_host()) return "shm";
  return hosts.all_alone() || (config.any_source && requested == "auto") ? "tcp" : "hierarchical";
}

MUSTER_INLINE std::string listener_endpoints(const tcp_listeners& listeners, const settings& configuration) {
  const auto* const by_mpi = configuration.value(setting::transport) == "mpi" ? surviving_mpi() : nullptr;
  return listeners.endpoints() + std::string(by_mpi != nullptr && !by_mpi->can_connect_survivors() ? without_mpi : "");
}

MUSTER_INLINE built_group connect_members(const transport_config& config, const elastic::generation_record& group,
                                          int rank, tcp_listeners listeners, const std::function<bool()>& is_canceled) {
  const std::string transport_name = transport_between(group, config);
  const int size = static_cast<int>(group.members.size());
  built_group built;
  if (transport_name == "mpi") {
    built.transport = over_mpi(config, group, rank);
  } else if (transport_name == "self") {
    built.transport = make_self_transport();
  } else if (transport_name == "shm") {
    auto within = over_memory(config, group, group.members.front().host, rank, size, is_canceled);
    built.host = within->shared_host();
    built.transport = std::move(within);
  } else {
    built.transport = over_tcp(config, group, rank, std::move(listeners), is_canceled);
    if (transport_name == "tcp") return built;
    auto hosts = hosts_of(group);
    std::unique_ptr<shm_transport> within;
    if (const int local_size = static_cast<int>(hosts.neighbours(rank).size()); local_size > 1) {
      const auto self = static_cast<std::size_t>(rank);
      within = over_memory(config, group, group.members[self].host, hosts.local_rank_of[self], local_size, is_canceled);
      built.host = within->shared_host();
    }
    built.transport =
        std::make_unique<hierarchical_transport>(std::move(built.transport), std::move(within), std::move(hosts));
  }
  return built;
}

}}}  // namespace muster::v0::detail
