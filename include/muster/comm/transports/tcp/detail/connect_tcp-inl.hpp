#pragma once

#include <muster/comm/transports/tcp/connect_tcp.hpp>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <muster/comm/bootstrap/endpoints.hpp>
#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/group/words.hpp>
#include <muster/comm/transports/tcp/tcp_transport.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/random_bytes.hpp>
#include <muster/core/wire.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::string_view endpoints_mark = "tcp3";  // 3 is the version of the format

// Returns the set of cores on which this process may run, in wire format: without the zero bytes at the end.
inline std::string own_cores() {
  cpu_set_t set{};
  (void)::sched_getaffinity(0, sizeof set, &set);
  const std::string_view bytes(reinterpret_cast<const char*>(&set), sizeof set);
  return std::string(bytes.substr(0, bytes.find_last_not_of('\0') + 1));
}

MUSTER_INLINE tcp_listeners::tcp_listeners(std::string_view interfaces, const std::string& origin) {
  wire_writer endpoints;
  endpoints.add_text(endpoints_mark);
  endpoints.add_text(random_token());
  // The kernel's identifier of this boot is the same in all containers on the machine.
  endpoints.add_text(boot_number().empty() ? host_name() : boot_number());
  endpoints.add_text(host_name());
  endpoints.add(std::int64_t{::getpid()});
  endpoints.add_text(own_cores());
  for (const auto& local_address : own_addresses(interfaces, origin)) {
    sockets_.push_back(tcp_socket::reserve(local_address.with_port(0)));
    endpoints.add_text(sockets_.back().local().to_string());
  }
  endpoints_ = endpoints.take();
}

MUSTER_INLINE std::vector<tcp_socket> tcp_listeners::open() {
  for (const auto& socket : sockets_) socket.start_listening();
  return std::move(sockets_);
}

MUSTER_INLINE std::string interface_of(const settings& configuration, const launch_env& launch) {
  const auto& interfaces_setting = configuration.value(setting::interface);
  // A process that joins an elastic job later may be on another host. With `--rendezvous auto` the store of such a job
  // is found on this host only.
  const bool may_grow =
      configuration.value(setting::elastic) == "on" && configuration.value(setting::rendezvous) != "auto";
  return interfaces_setting == "auto" && launch.on_one_host() && !may_grow ? "here" : interfaces_setting;
}

MUSTER_INLINE tcp_peer read_endpoints(const std::string& endpoints, int rank) {
  wire_reader reader(endpoints);
  tcp_peer peer;
  const bool has_mark = reader.text() == endpoints_mark;
  (void)reader.text();
  peer.host = reader.text();
  peer.name = reader.text();
  peer.process = reader.number<std::int64_t>();
  const auto cores = reader.text();
  std::memcpy(&peer.cores, cores.data(), std::min(cores.size(), sizeof peer.cores));
  while (!reader.rest().empty()) {
    if (const auto parsed = address::parse(reader.text()); !parsed.empty()) peer.addresses.push_back(parsed);
  }
  if (!has_mark || !reader.is_complete() || peer.addresses.empty()) {
    throw error(
        error_kind::other,
        "the description of rank " + std::to_string(rank) +
            " cannot be read (another version of muster may have sent it); start all ranks with the same build");
  }
  return peer;
}

MUSTER_INLINE std::unique_ptr<tcp_transport> connect_mesh(const tcp_plan& plan, int rank,
                                                          const std::vector<std::string>& endpoints,
                                                          tcp_listeners listeners, std::string_view token,
                                                          clock::time_point deadline,
                                                          const std::function<bool()>& is_aborted) {
  std::vector<std::string_view> parts{token};
  std::vector<tcp_peer> peers;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    parts.emplace_back(endpoints[i]);
    peers.push_back(read_endpoints(endpoints[i], static_cast<int>(i)));
  }
  auto mesh = std::make_shared<tcp_mesh>(plan, rank, std::move(peers), listeners.open(), job_secret(parts));
  if (!plan.lazy) mesh->await_all(deadline, is_aborted);
  std::vector<int> ranks(endpoints.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return std::make_unique<tcp_transport>(std::move(mesh), std::move(ranks), rank, 0);
}

MUSTER_INLINE tcp_plan plan_of(const settings& configuration) {
  tcp_plan plan;
  plan.lazy = configuration.choice(setting::connections, {"all", "lazy"}) == 1;
  plan.beat = seconds(configuration.number(setting::heartbeat));
  plan.missed_heartbeats = static_cast<int>(configuration.integer(setting::missed_heartbeats));
  plan.connect_timeout = seconds(configuration.number(setting::timeout));
  plan.limits.checksum = configuration.choice(setting::checksum, {"off", "on"}) == 1;
  return plan;
}

MUSTER_INLINE std::unique_ptr<transport> connect_tcp(const settings& configuration, const launch_env& launch) {
  const tcp_plan plan = plan_of(configuration);
  const auto deadline = deadline_after(plan.connect_timeout);
  tcp_listeners listeners(interface_of(configuration, launch), configuration.origin(setting::interface));
  std::vector<std::string> endpoints{listeners.endpoints()};
  std::string token;
  if (launch.size > 1) {
    const auto store = open_store(configuration, launch);
    token = common_token(*store, configuration, deadline);
    endpoints = exchange(*store, "tcp/", launch.rank, launch.size, listeners.endpoints(), deadline);
  }
  return connect_mesh(plan, launch.rank, endpoints, std::move(listeners), token, deadline);
}

MUSTER_INLINE std::vector<std::unique_ptr<transport>> connect_tcp_endpoints(const settings& configuration, group& ranks,
                                                                            int rank_count) {
  const tcp_plan plan = plan_of(configuration);
  std::vector<tcp_listeners> listeners;
  std::vector<std::string> endpoints;
  for (int k = 0; k < rank_count; ++k) {
    listeners.emplace_back(configuration.value(setting::interface), configuration.origin(setting::interface));
    const auto all_endpoints = allgather_strings(ranks, listeners.back().endpoints());
    endpoints.insert(endpoints.end(), all_endpoints.begin(), all_endpoints.end());
  }
  // Only the processes in the group receive the token that rank 0 draws.
  const auto token = broadcast_string(ranks, random_token(), 0);
  const auto deadline = deadline_after(plan.connect_timeout);
  return connect_at_once(rank_count, [&](int k) -> std::unique_ptr<transport> {
    return connect_mesh(plan, k * ranks.size() + ranks.rank(), endpoints,
                        std::move(listeners[static_cast<std::size_t>(k)]), token, deadline);
  });
}

void register_tcp_stores();

extern const plugin tcp_plugin;
[[gnu::init_priority(101)]] MUSTER_INLINE const plugin tcp_plugin("tcp", [] {
  register_tcp_stores();
  register_process_transport({"tcp", &connect_tcp, &tcp_abilities_with, &connect_tcp_endpoints});
});

}}}  // namespace muster::v0::detail
