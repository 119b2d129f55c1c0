#include "rebuild.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <string_view>

#include <muster/comm/settings.hpp>
#include <muster/comm/transports/local.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../comm/bootstrap/transport_choice.hpp"
#include "../comm/transports/hierarchical/transport.hpp"
#include "../comm/transports/shm/connect.hpp"
#include "../comm/transports/tcp/transport.hpp"

namespace muster::inline v0::detail {
namespace {

using given_up_question = std::function<bool()>;

host_map hosts_of(const elastic::generation_record& group) {
  std::vector<std::uint64_t> hosts;
  for (const auto& one : group.members) hosts.push_back(one.host);
  return host_map(hosts);
}

std::string hexadecimal(std::uint64_t number) {
  char digits[16];
  return {digits, std::to_chars(digits, digits + sizeof digits, number, 16).ptr};
}

// The token tells jobs apart.
std::string job_name(const transport_config& config) { return hexadecimal(digest().add(config.token).value()); }

std::unique_ptr<shm_transport> over_memory(const transport_config& config, const elastic::generation_record& group,
                                           std::uint64_t host, int rank, int size, const given_up_question& given_up) {
  // The generation tells one meeting from the next.
  const std::string name =
      "muster-elastic." + job_name(config) + "." + std::to_string(group.generation) + "." + hexadecimal(host);
  const auto pulls = static_cast<cma_wish>(config.configuration->choice(setting::cma, {"auto", "on", "off"}));
  return connect_anew(name, rank, size, config.memory, pulls, seconds(config.configuration->positive(setting::timeout)),
                      given_up);
}

constexpr std::string_view without_mpi = " no-mpi";

// Where it waits, without what it says of MPI.
std::string doors_of(const elastic::member& one) {
  const std::string_view endpoints = one.endpoints;
  return std::string(endpoints.ends_with(without_mpi) ? endpoints.substr(0, endpoints.size() - without_mpi.size())
                                                      : endpoints);
}

std::unique_ptr<transport> over_tcp(const transport_config& config, const elastic::generation_record& group, int rank,
                                    tcp_listeners listeners, const given_up_question& given_up) {
  const tcp_plan plan = plan_of(*config.configuration);
  const auto until = deadline_after(plan.patience);
  std::vector<std::string> endpoints;
  for (const auto& one : group.members) endpoints.push_back(doors_of(one));
  return connect_mesh(plan, rank, endpoints, std::move(listeners),
                      config.token + "/" + std::to_string(group.generation), until, given_up);
}

bool has_lost_mpi(const elastic::generation_record& group) {
  return std::any_of(group.members.begin(), group.members.end(),
                     [](const elastic::member& one) { return one.endpoints.ends_with(without_mpi); });
}

// Null where the MPI of this program does not go on when ranks die, or there is none.
const process_transport* surviving_mpi() noexcept {
  for (const auto& made : registered_transports()) {
    if (made.name == "mpi" && made.connect_survivors != nullptr) return &made;
  }
  return nullptr;
}

std::unique_ptr<transport> over_mpi(const transport_config& config, const elastic::generation_record& group, int rank) {
  std::vector<elastic::member_id> members;
  for (const auto& one : group.members) members.push_back(one.id);
  return surviving_mpi()->connect_survivors(*config.configuration, members, rank, group.generation);
}

}  // namespace

std::string listener_endpoints(const tcp_listeners& listeners, const settings& configuration) {
  const auto* const by_mpi = configuration.value(setting::transport) == "mpi" ? surviving_mpi() : nullptr;
  return listeners.endpoints() + std::string(by_mpi != nullptr && !by_mpi->can_connect_survivors() ? without_mpi : "");
}

std::string transport_between(const elastic::generation_record& group, const settings& configuration) {
  const auto hosts = hosts_of(group);
  const auto asked =
      configuration.choice(setting::transport, {"auto", "self", "local", "shm", "mpi", "tcp", "hierarchical"});
  const std::string origin = configuration.origin(setting::transport);
  if (asked == 4 && surviving_mpi() == nullptr) {
    throw configuration_error(origin +
                              " asks for transport mpi (the MPI of this program ends the job when a rank dies; Open "
                              "MPI 5 with ULFM does not); use auto, tcp, shm or hierarchical");
  }
  if (asked == 1 || asked == 2) {
    throw configuration_error(origin + " asks for transport " + configuration.value(setting::transport) +
                              " (ranks that die and join are connected by shm, tcp or hierarchical); choose one of "
                              "these or auto");
  }
  if (asked == 4 && !has_lost_mpi(group))
    return "mpi";  // also for one that is left: the others of its world may not have ended yet
  if (group.members.size() == 1) return "self";
  if (asked == 3 && !hosts.one_host()) {
    throw configuration_error(origin + " asks for transport shm (the members of this job are on " +
                              std::to_string(hosts.hosts.size()) + " hosts); use auto, hierarchical or tcp");
  }
  if (asked == 5) return "tcp";
  if (hosts.one_host()) return "shm";
  return hosts.all_alone() ? "tcp" : "hierarchical";
}

built_group connect_members(const transport_config& config, const elastic::generation_record& group, int rank,
                            tcp_listeners listeners, const given_up_question& given_up) {
  const std::string how = transport_between(group, *config.configuration);
  const int size = static_cast<int>(group.members.size());
  built_group made;
  if (how == "mpi") {
    made.transport = over_mpi(config, group, rank);
  } else if (how == "self") {
    made.transport = make_self_transport();
  } else if (how == "shm") {
    auto within = over_memory(config, group, group.members.front().host, rank, size, given_up);
    made.host = within->shared_host();
    made.transport = std::move(within);
  } else {
    made.transport = over_tcp(config, group, rank, std::move(listeners), given_up);
    if (how == "tcp") return made;
    auto hosts = hosts_of(group);
    std::unique_ptr<shm_transport> within;
    if (const int here = static_cast<int>(hosts.neighbours(rank).size()); here > 1) {
      const auto self = static_cast<std::size_t>(rank);
      within = over_memory(config, group, group.members[self].host, hosts.place_of[self], here, given_up);
      made.host = within->shared_host();
    }
    made.transport =
        std::make_unique<hierarchical_transport>(std::move(made.transport), std::move(within), std::move(hosts));
  }
  return made;
}

}  // namespace muster::inline v0::detail
