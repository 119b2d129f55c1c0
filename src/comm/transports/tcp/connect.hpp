// How TCP gets into a context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include "mesh.hpp"

namespace muster { inline namespace v0 { namespace detail {

class tcp_transport;

/// As it is with a core for every rank. Constants of the loopback of a small virtual machine; a network is slower, in
/// latency and bandwidth alike. Combining costs nothing: it takes the place of the write to memory that a receive would
/// make, out of a buffer that is still in the cache. (With a cost of its own two ranks would exchange halves twice
/// instead of the whole once, which takes 1.7 times as long at 16 MiB.)
inline constexpr transport_abilities tcp_abilities{
    .name = "tcp",
    .any_source = true,
    .detects_death = true,
    .moves_buffers = true,
    .concurrent_groups = true,
    .costs = {.latency = 5e-6, .per_byte = 4e-10, .reduce_per_byte = 0, .next_message = 0.25}};

/// Where ranks share cores a message takes a context switch besides. So four ranks on two cores combine what they
/// have along a tree, which takes the fewest messages, up to a quarter of a mebibyte, and in parts beyond.
inline constexpr transport_costs tcp_costs_when_oversubscribed{
    .latency = 14e-6, .per_byte = 3.8e-10, .reduce_per_byte = 0, .next_message = 0.4};

[[nodiscard]] inline transport_abilities tcp_abilities_with(double ranks_a_core) noexcept {
  auto made = tcp_abilities;
  if (ranks_a_core > 1) {
    made.costs = tcp_costs_when_oversubscribed;
    made.costs.ranks_a_core = ranks_a_core;
  }
  return made;
}

/// What `own_addresses` is asked for: `--interface`, or the loopback where that is auto and all ranks are on this host.
[[nodiscard]] std::string interface_of(const settings& configuration, const launch_env& launch);

/// Where a rank waits for the others, before they know of it. No peer can connect before the rank listens there.
class tcp_listeners {
 public:
  /// `chosen`: as `own_addresses` takes it. Every address gets a port of its own.
  tcp_listeners(std::string_view chosen, const std::string& origin);

  /// What the others are to know of this rank. With bytes that no other process could foresee, so that the secret of
  /// all endpoints together is a new one for every start.
  [[nodiscard]] const std::string& endpoints() const noexcept { return endpoints_; }
  /// Begins to listen; the caller answers.
  [[nodiscard]] std::vector<tcp_socket> open();

 private:
  std::vector<tcp_socket> sockets_;
  std::string endpoints_;
};

/// Reads an endpoint list; throws error naming the rank when it is none.
[[nodiscard]] tcp_peer read_endpoints(const std::string& endpoints, int rank);

/// Connects a process, from the endpoints of all and the token of the job (which may be empty: then a process that can
/// read the endpoints is of the job). Collective, unless connections are lazy; throws what `tcp_mesh::await_all`
/// throws.
[[nodiscard]] std::unique_ptr<tcp_transport> connect_mesh(const tcp_plan& plan, int rank,
                                                          const std::vector<std::string>& endpoints,
                                                          tcp_listeners listeners, std::string_view token,
                                                          clock::time_point until,
                                                          const std::function<bool()>& given_up = {});

/// What the settings say of it.
[[nodiscard]] tcp_plan plan_of(const settings& configuration);

/// Connects the ranks that the launcher started: they find each other by `open_store`. Collective; throws what that and
/// `connect_mesh` throw.
[[nodiscard]] std::unique_ptr<transport> connect_tcp(const settings& configuration, const launch_env& launch);

/// See `connect_endpoints` of comm/bootstrap/endpoints.hpp. They find each other through the group.
[[nodiscard]] std::vector<std::unique_ptr<transport>> connect_tcp_endpoints(const settings& configuration, group& ranks,
                                                                            int count);

}}}  // namespace muster::v0::detail
