#pragma once

#include <muster/comm/net/address.hpp>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline std::optional<unsigned> number(std::string_view text, unsigned most) {
  const auto value = parse_number<unsigned>(text);
  return value && *value <= most ? value : std::nullopt;
}

// "host:port" or "[host]:port" split in two.
struct host_and_port {
  std::string_view host;
  std::string_view port;
  bool bracketed = false;
};

inline std::optional<host_and_port> split_port(std::string_view text) {
  if (text.starts_with('[')) {
    const auto end = text.find(']');
    if (end == std::string_view::npos || end + 1 >= text.size() || text[end + 1] != ':') return std::nullopt;
    return host_and_port{text.substr(1, end - 1), text.substr(end + 2), true};
  }
  const auto colon = text.find(':');
  if (colon == std::string_view::npos || text.find(':', colon + 1) != std::string_view::npos) return std::nullopt;
  return host_and_port{text.substr(0, colon), text.substr(colon + 1)};
}

inline address from_number(std::string_view host, std::uint16_t port) noexcept {
  char text[INET6_ADDRSTRLEN] = {};
  if (host.size() >= sizeof text) return {};
  std::memcpy(text, host.data(), host.size());
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, text, &v4.sin_addr) == 1) return {reinterpret_cast<const sockaddr*>(&v4), sizeof v4};
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  if (::inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) return {reinterpret_cast<const sockaddr*>(&v6), sizeof v6};
  return {};
}

inline const sockaddr_in& as_v4(const address& a) { return *reinterpret_cast<const sockaddr_in*>(a.get()); }
inline const sockaddr_in6& as_v6(const address& a) { return *reinterpret_cast<const sockaddr_in6*>(a.get()); }

inline std::span<const unsigned char> bytes_of(const address& a) {
  if (a.family() == AF_INET) return {reinterpret_cast<const unsigned char*>(&as_v4(a).sin_addr), 4};
  if (a.family() == AF_INET6) return {as_v6(a).sin6_addr.s6_addr, 16};
  return {};
}

// Returns true if both addresses have one family and the same first `bits` bits; the ports do not matter.
inline bool same_number(const address& a, const address& b, unsigned bits) {
  if (a.family() != b.family()) return false;
  const auto left = bytes_of(a);
  const auto right = bytes_of(b);
  for (std::size_t i = 0; i < left.size() && bits > 0; ++i) {
    const unsigned in_byte = std::min(bits, 8U);
    const unsigned mask = 0xffU << (8 - in_byte) & 0xffU;
    if (((left[i] ^ right[i]) & mask) != 0) return false;
    bits -= in_byte;
  }
  return true;
}

inline bool is_in(const address& a, std::string_view net, unsigned bits) {
  return same_number(a, from_number(net, 0), bits);
}

// Returns the addresses of `all` that one word of the user's choice selects.
inline std::vector<address> chosen_by(std::string_view word, const std::vector<interface_address>& all) {
  std::vector<address> found;
  const auto slash = word.find('/');
  const address net = from_number(word.substr(0, slash), 0);
  const unsigned all_bits = net.family() == AF_INET ? 32 : 128;
  const auto bits = slash == std::string_view::npos ? all_bits : number(word.substr(slash + 1), all_bits);
  if (!net.empty() && !bits) return found;
  for (const auto& candidate : all) {
    const bool fits = net.empty() ? candidate.interface == word : same_number(candidate.ip, net, *bits);
    if (fits) found.push_back(candidate.ip);
  }
  return found;
}

inline std::string list_of(const std::vector<interface_address>& all) {
  if (all.empty()) return "none";
  return joined(all, ", ", [](const auto& entry) { return entry.interface + " " + entry.ip.host(); });
}

MUSTER_INLINE host_port parse_host_port(std::string_view text, const std::string& origin) {
  const auto parts = split_port(text);
  const auto port = parts ? number(parts->port, 65535) : std::nullopt;
  const bool good = parts && port && *port > 0 && !parts->host.empty() &&
                    parts->host.find_first_of(" /@[]") == std::string_view::npos &&
                    (!parts->bracketed || from_number(parts->host, 0).family() == AF_INET6);
  if (!good) {
    throw configuration_error(origin + " cannot be '" + std::string(text) +
                              "' (not a host and a port from 1 to 65535); write node1:29500, 10.0.0.1:29500 or "
                              "[2001:db8::1]:29500");
  }
  return {std::string(parts->host), static_cast<std::uint16_t>(*port)};
}

MUSTER_INLINE address::address(const sockaddr* system_address, socklen_t length) noexcept {
  const bool is_supported =
      system_address != nullptr && ((system_address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) ||
                                    (system_address->sa_family == AF_INET6 && length >= sizeof(sockaddr_in6)));
  if (!is_supported) return;
  length_ = system_address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&storage_, system_address, length_);
}

MUSTER_INLINE address address::parse(std::string_view text) noexcept {
  const auto parts = split_port(text);
  const auto port = parts ? number(parts->port, 65535) : std::nullopt;
  if (!port) return {};
  const address read = from_number(parts->host, static_cast<std::uint16_t>(*port));
  return parts->bracketed == (read.family() == AF_INET6) ? read : address();
}

MUSTER_INLINE address address::any(std::uint16_t port) noexcept {
  const bool has_v6 = [] {
    const int probe = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (probe >= 0) ::close(probe);
    return probe >= 0;
  }();
  return from_number(has_v6 ? "::" : "0.0.0.0", port);
}

MUSTER_INLINE std::uint16_t address::port() const noexcept {
  if (family() == AF_INET) return ntohs(as_v4(*this).sin_port);
  return family() == AF_INET6 ? ntohs(as_v6(*this).sin6_port) : std::uint16_t{0};
}

MUSTER_INLINE address address::with_port(std::uint16_t port) const noexcept {
  address changed = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&changed.storage_)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&changed.storage_)->sin6_port = htons(port);
  return changed;
}

MUSTER_INLINE bool address::is_loopback() const noexcept {
  return is_in(*this, "127.0.0.0", 8) || is_in(*this, "::1", 128) || is_in(*this, "::ffff:127.0.0.0", 104);
}

MUSTER_INLINE bool address::is_link_local() const noexcept {
  return is_in(*this, "169.254.0.0", 16) || is_in(*this, "fe80::", 10);
}

MUSTER_INLINE std::string address::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (empty() || ::inet_ntop(family(), bytes_of(*this).data(), text, sizeof text) == nullptr) return "(no address)";
  return text;
}

MUSTER_INLINE std::string address::to_string() const {
  const std::string port = ":" + std::to_string(this->port());
  return family() == AF_INET6 ? "[" + host() + "]" + port : host() + port;
}

MUSTER_INLINE bool address::operator==(const address& other) const noexcept {
  return length_ == other.length_ && port() == other.port() && same_number(*this, other, 128);
}

// Looks up a name. If no address is found, returns none and sets `reason`.
inline std::vector<address> look_up(const host_port& where, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;  // without it each address is listed once per kind of socket
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* first = nullptr;
  const int code = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &first);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, &::freeaddrinfo);
  std::vector<address> found;
  for (const addrinfo* entry = code == 0 ? first : nullptr; entry != nullptr; entry = entry->ai_next) {
    const address next(entry->ai_addr, entry->ai_addrlen);
    if (!next.empty() && std::find(found.begin(), found.end(), next) == found.end()) found.push_back(next);
  }
  reason = code == 0 ? "it has no address" : code == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(code);
  return found;
}

MUSTER_INLINE std::vector<address> resolve(const host_port& where, clock::time_point until) {
  if (const address read = from_number(where.host, where.port); !read.empty()) return {read};
  for (std::string reason;;) {
    auto found = look_up(where, reason);
    if (!found.empty()) return found;
    if (clock::now() + net_timing::name_retry >= until) {
      throw configuration_error("host '" + where.host + "' cannot be found (" + reason +
                                "); check its spelling, or write its address");
    }
    std::this_thread::sleep_for(net_timing::name_retry);
  }
}

MUSTER_INLINE std::vector<interface_address> all_interface_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) {
    const int code = errno;
    throw error(error_kind::other, "the host's addresses cannot be listed (" + std::string(std::strerror(code)) +
                                       "); " +
                                       (code == EMFILE || code == ENFILE ? "raise the limit of descriptors (ulimit -n)"
                                                                         : "set an address in the settings"));
  }
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(first, &::freeifaddrs);
  std::vector<interface_address> all;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if ((entry->ifa_flags & IFF_UP) == 0 || entry->ifa_addr == nullptr) continue;
    const address destination(entry->ifa_addr,
                              entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (!destination.empty() && !destination.is_link_local())
      all.push_back({entry->ifa_name, destination.with_port(0)});
  }
  return all;
}

MUSTER_INLINE std::vector<address> own_addresses(std::string_view interface, const std::string& origin) {
  const auto all = all_interface_addresses();
  std::vector<address> found;
  if (interface == "auto" || interface == "here") {
    for (const bool loopback : {interface == "here", interface != "here"}) {
      for (const auto& entry : all) {
        if (entry.ip.is_loopback() == loopback) found.push_back(entry.ip);
      }
      if (!found.empty()) return found;
    }
    throw configuration_error("this host has no address (no network interface is up); bring one up: ip link set lo up");
  }
  for (const auto part : split(interface, ',')) {
    const std::string word(part);
    const auto more = chosen_by(word, all);
    if (more.empty()) {
      throw configuration_error(origin + " cannot be '" + std::string(interface) +
                                "' (no interface, subnet or address '" + word +
                                "' is up on this host; available: " + list_of(all) + "); choose from these");
    }
    for (const auto& candidate : more) {
      if (std::find(found.begin(), found.end(), candidate) == found.end()) found.push_back(candidate);
    }
  }
  return found;
}

MUSTER_INLINE bool is_own(const address& destination) {
  if (destination.is_loopback()) return true;
  const auto all = all_interface_addresses();
  return std::any_of(all.begin(), all.end(), [&](const auto& entry) { return entry.ip == destination.with_port(0); });
}

}}}  // namespace muster::v0::detail
