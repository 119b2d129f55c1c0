// Internet addresses: parsed and printed, resolved from names, and listed for this host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A host as written by the user, by name or by number, and a port.
struct host_port {
  std::string host;
  std::uint16_t port = 0;
};

/// Parses "host:port", "10.0.0.1:port" or "[::1]:port". Throws configuration_error whose text begins with `origin` (the
/// flag or variable that holds the text).
[[nodiscard]] host_port parse_host_port(std::string_view text, const std::string& origin);

/// An IPv4 or IPv6 address with a port, in the system's format.
class address {
 public:
  address() = default;
  /// Copies a system address. Families other than IPv4 and IPv6 give an empty address.
  address(const sockaddr* system_address, socklen_t length) noexcept;

  /// Parses the format of `to_string`: numbers only, without a name lookup. Returns an empty address for any other
  /// text.
  [[nodiscard]] static address parse(std::string_view text) noexcept;
  /// Returns the unspecified address, for both families where the system has both.
  [[nodiscard]] static address any(std::uint16_t port) noexcept;

  [[nodiscard]] bool empty() const noexcept { return length_ == 0; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] address with_port(std::uint16_t port) const noexcept;
  /// Returns true if the address reaches only this host.
  [[nodiscard]] bool is_loopback() const noexcept;
  /// Returns true if the address is valid only together with an interface of the process that uses it (169.254/16,
  /// fe80::/10).
  [[nodiscard]] bool is_link_local() const noexcept;

  /// Returns the text with the port: "10.0.0.1:4711", "[2001:db8::1]:4711".
  [[nodiscard]] std::string to_string() const;
  /// Returns the text without port and brackets.
  [[nodiscard]] std::string host() const;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }

  /// Returns true for the same family, number and port.
  bool operator==(const address& other) const noexcept;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Returns all addresses of the host's name, in the order that this host prefers; at least one. A name service may not
/// have a name yet, for example the name of a pod that has just started: the function repeats the lookup until the
/// deadline and then throws configuration_error. By default it does not repeat the lookup. A lookup of a name (not of a
/// number) may take as long as the timeout of the system's resolver.
[[nodiscard]] std::vector<address> resolve(const host_port& where, clock::time_point until = {});

/// A local address and its interface.
struct interface_address {
  std::string interface;  ///< "eth0"
  address ip;             ///< its port is 0
};

/// Returns the addresses of the interfaces that are up, in the system's order, without link-local addresses.
[[nodiscard]] std::vector<interface_address> all_interface_addresses();

/// Returns the addresses at which other processes reach this host. `interface` is "auto" (all addresses that reach
/// beyond this host; the loopback if there are no others), "here" (the loopback, for a job of one host; other addresses
/// if it is down), or a comma-separated list of interfaces by name ("eth0"), of subnets ("10.0.0.0/8", "2001:db8::/32")
/// and of single addresses. Keeps the order of the list. Throws configuration_error, whose text begins with `origin`
/// and lists the available addresses, when a part of the list is not a local address.
[[nodiscard]] std::vector<address> own_addresses(std::string_view interface, const std::string& origin);

/// Returns true if the address belongs to this host (and to this network namespace).
[[nodiscard]] bool is_own(const address& destination);

}}}  // namespace muster::v0::detail
