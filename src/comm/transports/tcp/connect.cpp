#include "connect.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/settings.hpp>
#include <muster/core/error.hpp>

#include "../../../core/random_bytes.hpp"
#include "../../../core/wire.hpp"
#include "../../bootstrap/endpoints.hpp"
#include "../../group/words.hpp"
#include "transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::string_view endpoints_mark = "tcp3";  // the 3 is the version of endpoints

// Those that this process may run on, as they are sent: without the bytes at the end that are all zeroes.
std::string own_cores() {
  cpu_set_t set{};
  (void)::sched_getaffinity(0, sizeof set, &set);
  const std::string_view bytes(reinterpret_cast<const char*>(&set), sizeof set);
  return std::string(bytes.substr(0, bytes.find_last_not_of('\0') + 1));
}

}  // namespace

tcp_listeners::tcp_listeners(std::string_view chosen, const std::string& origin) {
  wire_writer endpoints;
  endpoints.add_text(endpoints_mark);
  endpoints.add_text(random_token());
  // The kernel's own number of this start of the machine: the same in all its containers.
  endpoints.add_text(boot_number().empty() ? host_name() : boot_number());
  endpoints.add_text(host_name());
  endpoints.add(std::int64_t{::getpid()});
  endpoints.add_text(own_cores());
  for (const auto& one : own_addresses(chosen, origin)) {
    sockets_.push_back(tcp_socket::reserve(one.with_port(0)));
    endpoints.add_text(sockets_.back().local().to_string());
  }
  endpoints_ = endpoints.take();
}

std::vector<tcp_socket> tcp_listeners::open() {
  for (const auto& one : sockets_) one.start_listening();
  return std::move(sockets_);
}

std::string interface_of(const settings& configuration, const launch_env& launch) {
  const auto& asked = configuration.value(setting::interface);
  // A process that joins an elastic job later may be on another host, unless it meets in a folder of this one.
  const bool may_grow =
      configuration.value(setting::elastic) == "on" && configuration.value(setting::rendezvous) != "auto";
  return asked == "auto" && launch.on_one_host() && !may_grow ? "here" : asked;
}

tcp_peer read_endpoints(const std::string& endpoints, int rank) {
  wire_reader in(endpoints);
  tcp_peer read;
  const bool known = in.text() == endpoints_mark;
  (void)in.text();
  read.host = in.text();
  read.name = in.text();
  read.process = in.number<std::int64_t>();
  const auto cores = in.text();
  std::memcpy(&read.cores, cores.data(), std::min(cores.size(), sizeof read.cores));
  while (!in.rest().empty()) {
    if (const auto one = address::parse(in.text()); !one.empty()) read.addresses.push_back(one);
  }
  if (!known || !in.whole() || read.addresses.empty()) {
    throw error(
        error_kind::other,
        "the description of rank " + std::to_string(rank) +
            " cannot be read (another version of muster may have sent it); start all ranks with the same build");
  }
  return read;
}

std::unique_ptr<tcp_transport> connect_mesh(const tcp_plan& plan, int rank, const std::vector<std::string>& endpoints,
                                            tcp_listeners listeners, std::string_view token, clock::time_point until,
                                            const std::function<bool()>& given_up) {
  std::vector<std::string_view> parts{token};
  std::vector<tcp_peer> peers;
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    parts.emplace_back(endpoints[i]);
    peers.push_back(read_endpoints(endpoints[i], static_cast<int>(i)));
  }
  auto mesh = std::make_shared<tcp_mesh>(plan, rank, std::move(peers), listeners.open(), job_secret(parts));
  if (!plan.lazy) mesh->await_all(until, given_up);
  std::vector<int> all(endpoints.size());
  std::iota(all.begin(), all.end(), 0);
  return std::make_unique<tcp_transport>(std::move(mesh), std::move(all), rank, 0);
}

tcp_plan plan_of(const settings& configuration) {
  tcp_plan plan;
  plan.lazy = configuration.choice(setting::connections, {"all", "lazy"}) == 1;
  plan.beat = seconds(configuration.positive(setting::heartbeat));
  plan.missed = static_cast<int>(configuration.integer(setting::missed_heartbeats));
  plan.patience = seconds(configuration.positive(setting::timeout));
  plan.limits.checksum = configuration.choice(setting::checksum, {"off", "on"}) == 1;
  return plan;
}

std::unique_ptr<transport> connect_tcp(const settings& configuration, const launch_env& launch) {
  const tcp_plan plan = plan_of(configuration);
  const auto until = deadline_after(plan.patience);
  tcp_listeners listeners(interface_of(configuration, launch), configuration.origin(setting::interface));
  std::vector<std::string> endpoints{listeners.endpoints()};
  std::string token;
  if (launch.size > 1) {
    const auto store = open_store(configuration, launch);
    token = common_token(*store, configuration, until);
    endpoints = exchange(*store, "tcp/", launch.rank, launch.size, listeners.endpoints(), until);
  }
  return connect_mesh(plan, launch.rank, endpoints, std::move(listeners), token, until);
}

std::vector<std::unique_ptr<transport>> connect_tcp_endpoints(const settings& configuration, group& ranks, int count) {
  const tcp_plan plan = plan_of(configuration);
  std::vector<tcp_listeners> listeners;
  std::vector<std::string> endpoints;
  for (int k = 0; k < count; ++k) {
    listeners.emplace_back(configuration.value(setting::interface), configuration.origin(setting::interface));
    const auto of_all = words_of_all(ranks, listeners.back().endpoints());
    endpoints.insert(endpoints.end(), of_all.begin(), of_all.end());
  }
  // The group is connected to no other process, so what rank 0 draws is known to no other.
  const auto drawn = word_of(ranks, random_token(), 0);
  const auto until = deadline_after(plan.patience);
  return connect_at_once(count, [&](int k) -> std::unique_ptr<transport> {
    return connect_mesh(plan, k * ranks.size() + ranks.rank(), endpoints,
                        std::move(listeners[static_cast<std::size_t>(k)]), drawn, until);
  });
}

bool link_tcp_store() noexcept;

bool link_tcp() noexcept {  // and the stores, which the ranks of a context may meet at
  static const bool done = link_tcp_store() && register_process_transport(
                                                   {"tcp", &connect_tcp, &tcp_abilities_with, &connect_tcp_endpoints});
  return done;
}

}}}  // namespace muster::v0::detail
