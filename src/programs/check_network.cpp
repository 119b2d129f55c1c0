#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include <poll.h>

#include <muster/core/error.hpp>
#include "check.hpp"

#ifdef MUSTER_HAS_TCP

#include <muster/comm/net/address.hpp>
#include <muster/comm/net/socket.hpp>

namespace {

using muster::detail::address;
using muster::detail::tcp_socket;

constexpr std::chrono::seconds connect_limit{5};  // for one connection
constexpr std::chrono::seconds waits_for_peer{60};

void send_number(const tcp_socket& socket, std::uint16_t number) {
  const iovec piece{&number, sizeof number};
  if (socket.try_write({&piece, 1}) != sizeof number)
    throw muster::error(muster::error_kind::other, "the other host takes no message");
}

std::uint16_t receive_number(const tcp_socket& socket, std::chrono::seconds limit) {
  std::uint16_t number = 0;
  const auto until = muster::clock::now() + limit;
  for (std::size_t have = 0; have < sizeof number;) {
    socket.await(POLLIN, until);
    have += socket.read_some({reinterpret_cast<std::byte*>(&number) + have, sizeof number - have});
  }
  return number;
}

tcp_socket accept_within(const tcp_socket& listener, std::chrono::seconds limit) {
  const auto until = muster::clock::now() + limit;
  for (;;) {
    listener.await(POLLIN, until);
    if (auto peer = listener.accept()) return peer;
  }
}

// Returns the address as iptables takes it: without a port, and IPv4 that IPv6 contains as IPv4.
std::string host_of(const address& peer) {
  auto text = peer.to_string();
  text.resize(text.rfind(':'));
  if (!text.starts_with('[')) return text;
  return text.substr(text.starts_with("[::ffff:") ? 8 : 1, text.size() - (text.starts_with("[::ffff:") ? 9 : 2));
}

// Returns the line that admits connections from an address.
std::string admit(const std::string& from, const std::string& where) {
  return std::string(from.find(':') == std::string::npos ? "iptables" : "ip6tables") + " -I INPUT -p tcp -s " + from +
         " -j ACCEPT   # as root on " + where;
}

// Connects as ranks do: to a port that the other host's system chose.
machine_check try_port(const std::string& name, const address& remote, const address& here) {
  try {
    static_cast<void>(tcp_socket::connect(remote, muster::clock::now() + connect_limit));
    return {name, "a connection to port " + std::to_string(remote.port()) + " of " + host_of(remote) + " is made", ""};
  } catch (const muster::detail::socket_error& failed) {
    return {name, failed.what(), admit(host_of(here), host_of(remote))};
  }
}

}  // namespace

std::vector<machine_check> check_listening(int port) {
  const auto listener = tcp_socket::listen(address::any(static_cast<std::uint16_t>(port)));
  const auto second = tcp_socket::listen(address::any(0));
  const auto chosen = std::to_string(listener.local().port());
  std::fprintf(stderr, "waits for a minute; on the other host run: muster-info check --reach THIS_HOST:%s\n",
               chosen.c_str());
  try {
    const auto peer = accept_within(listener, waits_for_peer);
    const auto their_port = receive_number(peer, connect_limit);
    send_number(peer, second.local().port());
    std::vector<machine_check> result{try_port("to the peer", peer.peer().with_port(their_port), peer.local())};
    send_number(peer, 0);  // this host has tried: the other host closes its port
    receive_number(peer, connect_limit * 3);
    return result;
  } catch (const muster::detail::socket_error& failed) {
    return {{"from the peer", std::string("no other host connected (") + failed.what() + ")",
             "iptables -I INPUT -p tcp --dport " + chosen + " -j ACCEPT   # as root on this host"}};
  }
}

std::vector<machine_check> check_reaching(const std::string& host_and_port) {
  const auto where = muster::detail::parse_host_port(host_and_port, "--reach");
  const auto remotes = muster::detail::resolve(where, muster::clock::now() + connect_limit);
  const auto own = tcp_socket::listen(address::any(0));
  std::vector<machine_check> result;
  try {
    const auto peer = tcp_socket::connect(remotes, muster::clock::now() + connect_limit);
    result.push_back({"to the peer", "a connection to " + peer.peer().to_string() + " is made", ""});
    send_number(peer, own.local().port());
    const auto their_port = receive_number(peer, connect_limit);
    result.push_back(try_port("to any port", peer.peer().with_port(their_port), peer.local()));
    receive_number(peer, connect_limit * 3);  // until the other host has tried
    if (own.accept()) {
      result.push_back({"from the peer", "a connection from " + host_of(peer.peer()) + " is made", ""});
    } else {
      result.push_back({"from the peer", "no connection from " + host_of(peer.peer()) + " arrives",
                        admit(host_of(peer.peer()), "this host")});
    }
    send_number(peer, 0);
  } catch (const muster::detail::socket_error& failed) {
    result.push_back({"to the peer", failed.what(),
                      "iptables -I INPUT -p tcp -j ACCEPT   # as root on " + where.host +
                          ", from this host; is muster-info check --listen running there?"});
  }
  return result;
}

#else

std::vector<machine_check> check_listening(int) {
  throw muster::configuration_error("--listen needs muster::tcp (this muster was built without OpenSSL); leave it out");
}

std::vector<machine_check> check_reaching(const std::string&) {
  throw muster::configuration_error("--reach needs muster::tcp (this muster was built without OpenSSL); leave it out");
}

#endif
