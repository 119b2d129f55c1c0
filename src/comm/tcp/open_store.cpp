// How a job's store is opened over TCP: where its settings say, or where rank 0 tells the others through PMIx.
#include <algorithm>
#include <array>
#include <cstdio>

#include <muster/comm/rendezvous/host_identity.hpp>
#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/comm/tcp/embedded_store.hpp>
#include <muster/comm/tcp/store.hpp>
#include <muster/core/error.hpp>

#include "../net/address.hpp"
#include "../net/handshake.hpp"
#include "../net/pmix.hpp"
#include "../net/socket.hpp"
#include "connect.hpp"

namespace muster::inline v0 {
namespace {

std::string token_of(const settings& configuration) {
  const auto& asked = configuration.value(setting::token);
  return asked == "auto" ? std::string() : asked;
}

// Under which addresses the others may reach a port of this host.
std::string own_list(std::uint16_t port, const settings& configuration, const launch_env& launch) {
  std::string list;
  for (const auto& one :
       detail::own_addresses(detail::interface_of(configuration, launch), configuration.origin(setting::interface))) {
    list += (list.empty() ? "" : ",") + one.with_port(port).to_string();
  }
  return list;
}

// How this very host reaches a port at which it listens on all addresses, also where its loopback is down.
std::string from_here(std::uint16_t port, const settings& configuration, const launch_env& launch) {
  return "127.0.0.1:" + std::to_string(port) + "," + own_list(port, configuration, launch);
}

// Rank 0 serves at what the user named, if that is here and free.
std::unique_ptr<store_server> serve_at(const detail::host_port& place, const std::string& token) {
  const auto addresses = detail::resolve(place);
  if (std::none_of(addresses.begin(), addresses.end(), detail::is_own)) return nullptr;
  // A name may stand for the loopback here and for another address elsewhere; a number means what it says.
  const bool narrow = place.host == "localhost" || addresses.front().host() == place.host;
  try {
    return std::make_unique<store_server>(narrow ? addresses.front().to_string() : ":" + std::to_string(place.port),
                                          token);
  } catch (const store_address_taken&) {  // by whoever serves already
    return nullptr;
  }
}

any_store open_tcp(std::string_view where, const std::string& origin, const settings& configuration,
                   const launch_env& launch, clock::time_point until) {
  const auto place = detail::parse_host_port(where, origin);
  const std::string token = token_of(configuration);
  std::unique_ptr<store_server> server;
  if (launch.rank == 0) server = serve_at(place, token);
  std::string reached(where);
  if (server && server->address() != reached) reached = from_here(place.port, configuration, launch);
  return any_store(std::make_unique<tcp_store>(reached, token, until, std::move(server)));
}

any_store open_embedded(std::string_view places, const std::string& token, const settings& configuration,
                        const launch_env& launch, clock::time_point until) {
  embedded_store_options options;
  options.token = token;
  options.of = launch.size;
  options.host = host_identity(configuration);
  options.interface = configuration.value(setting::interface);
  options.beat = seconds(configuration.positive(setting::heartbeat));
  options.missed_beats = static_cast<int>(configuration.integer(setting::missed_beats));
  return any_store(std::make_unique<embedded_store>(places, options, until));
}

any_store open_embedded_at(std::string_view places, const settings& configuration, const launch_env& launch,
                           clock::time_point until) {
  return open_embedded(places, token_of(configuration), configuration, launch, until);
}

std::string random_text() {
  std::array<std::byte, 32> bytes;
  detail::fill_random(bytes);
  std::string text;
  for (const std::byte one : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", std::to_integer<unsigned>(one));
    text += digits;
  }
  return text;
}

// A port of this host that nobody has.
std::uint16_t free_port() { return detail::tcp_socket::listen(detail::address::any(0)).local().port(); }

// What rank 0 tells the others: "at ADDRESSES TOKEN", or "error TEXT". A token that was given is not told.
std::optional<any_store> open_pmix(const settings& configuration, const launch_env& launch, clock::time_point until,
                                   std::string& why_not) {
  auto* const session = detail::pmix_session::open(why_not);
  if (!session) return std::nullopt;
  if (session->rank() != launch.rank) {
    why_not =
        "PMIx calls this rank " + std::to_string(session->rank()) + ", the launcher " + std::to_string(launch.rank);
    return std::nullopt;
  }
  const bool elastic = configuration.value(setting::elastic) == "on";
  std::string told;
  std::string token = token_of(configuration);
  std::unique_ptr<store_server> server;
  if (launch.rank == 0) {
    const bool draws = token.empty();
    if (draws) token = random_text();
    try {
      const bool here = detail::interface_of(configuration, launch) == "here";
      if (!elastic) server = std::make_unique<store_server>(here ? "127.0.0.1:0" : ":0", token);
      const auto port = elastic ? free_port() : server->port();
      told = "at " + own_list(port, configuration, launch) + " " + (draws ? token : std::string());
    } catch (const configuration_error& failed) {
      told = "error " + std::string(failed.what());
    }
  }
  told = session->share(told, until);
  const auto space = told.find(' ');
  const std::string rest = space == std::string::npos ? "" : told.substr(space + 1);
  if (!told.starts_with("at ")) throw configuration_error(told.starts_with("error ") ? rest : "rank 0 told nonsense");
  const auto end = std::min(rest.find(' '), rest.size());
  if (end + 1 < rest.size()) token = rest.substr(end + 1);
  std::string reached = rest.substr(0, end);
  if (elastic) return open_embedded(reached, token, configuration, launch, until);  // it is to outlive rank 0
  if (server) reached = from_here(server->port(), configuration, launch);
  return any_store(std::make_unique<tcp_store>(reached, token, until, std::move(server)));
}

}  // namespace

namespace detail {

bool link_tcp_store() noexcept {
  static const bool done = register_store_opener({&open_tcp, &open_embedded_at, &open_pmix});
  return done;
}

}  // namespace detail

}  // namespace muster::inline v0
