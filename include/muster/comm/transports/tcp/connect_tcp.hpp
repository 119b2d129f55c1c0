// Connects the tcp transport of a context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include <muster/comm/transports/tcp/mesh.hpp>

namespace muster { inline namespace v0 { namespace detail {

class tcp_transport;

/// The abilities of the tcp transport with a core for every rank. The costs are measured on the loopback of a small
/// virtual machine; a network has a higher latency and a lower bandwidth. Combining has no cost: it replaces the write
/// to memory of a receive, and reads from a buffer that is still in the cache. (With a cost for combining, two ranks
/// would exchange halves twice instead of the whole buffer once, which takes 1.7 times as long at 16 MiB.)
inline constexpr transport_abilities tcp_abilities{
    .name = "tcp",
    .any_source = true,
    .detects_death = true,
    .replaces_buffers = true,
    .concurrent_groups = true,
    .costs = {.latency = 5e-6, .per_byte = 4e-10, .reduce_per_byte = 0, .next_message = 0.25}};

/// The costs where ranks share cores: a message then also takes a context switch. With these costs four ranks on two
/// cores combine along a tree, which takes the fewest messages, up to a quarter of a mebibyte, and in parts beyond.
inline constexpr transport_costs tcp_costs_when_oversubscribed{
    .latency = 14e-6, .per_byte = 3.8e-10, .reduce_per_byte = 0, .next_message = 0.4};

/// Returns the abilities for that number of ranks a core.
[[nodiscard]] inline transport_abilities tcp_abilities_with(double ranks_a_core) noexcept {
  auto result = tcp_abilities;
  if (ranks_a_core > 1) {
    result.costs = tcp_costs_when_oversubscribed;
    result.costs.ranks_a_core = ranks_a_core;
  }
  return result;
}

/// Returns the interfaces to pass to `own_addresses`: `--interface`, or the loopback ("here") if `--interface` is auto
/// and all ranks, also later ones, are on this host.
[[nodiscard]] std::string interface_of(const settings& configuration, const launch_env& launch);

/// The bound sockets of a rank, before its peers know the addresses. No peer can connect before `open`.
class tcp_listeners {
 public:
  /// Binds a socket with its own port for every address of `interfaces`, which are in the format of `own_addresses`.
  tcp_listeners(std::string_view interfaces, const std::string& origin);

  /// Returns the encoded description of this rank for its peers (`tcp_peer`). The description contains random bytes, so
  /// the secret that is made from all endpoints is new for every start.
  [[nodiscard]] const std::string& endpoints() const noexcept { return endpoints_; }
  /// Starts to listen and returns the sockets, from which the caller accepts connections. Call once.
  [[nodiscard]] std::vector<tcp_socket> open();

 private:
  std::vector<tcp_socket> sockets_;
  std::string endpoints_;
};

/// Decodes the text tcp_listeners::endpoints() of one rank. Throws error that names `rank` if the text is invalid.
[[nodiscard]] tcp_peer read_endpoints(const std::string& endpoints, int rank);

/// Connects a process, given all endpoints and the token of the job. With an empty token every process
/// that can read the endpoints is trusted. Collective, unless connections are lazy. Throws the exceptions of
/// `tcp_mesh::await_all`.
[[nodiscard]] std::unique_ptr<tcp_transport> connect_mesh(const tcp_plan& plan, int rank,
                                                          const std::vector<std::string>& endpoints,
                                                          tcp_listeners listeners, std::string_view token,
                                                          clock::time_point deadline,
                                                          const std::function<bool()>& is_aborted = {});

/// Returns the plan of the connections according to the settings.
[[nodiscard]] tcp_plan plan_of(const settings& configuration);

/// Connects the ranks that the launcher started, which exchange their endpoints through `open_store`. Collective.
/// Throws the exceptions of `open_store` and `connect_mesh`.
[[nodiscard]] std::unique_ptr<transport> connect_tcp(const settings& configuration, const launch_env& launch);

/// See `connect_endpoints` of comm/bootstrap/endpoints.hpp. The endpoints are exchanged over the group.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_tcp_endpoints(const settings& configuration, group& ranks,
                                                                            int rank_count);

}}}  // namespace muster::v0::detail
