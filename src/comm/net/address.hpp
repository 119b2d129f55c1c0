// Internet addresses: read and printed, looked up by name, and those of this host.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A host as the user wrote it, by name or by number, and a port.
struct host_port {
  std::string host;
  std::uint16_t port = 0;
};

/// Reads "host:port", "10.0.0.1:port" or "[::1]:port". Throws configuration_error that begins with `origin` (the flag
/// or variable it came from).
[[nodiscard]] host_port parse_host_port(std::string_view text, const std::string& origin);

/// One IPv4 or IPv6 address with a port, as the system takes it.
class address {
 public:
  address() = default;
  /// From what the system filled in; other families than IPv4 and IPv6 make an empty address.
  address(const sockaddr* from, socklen_t length) noexcept;

  /// Reads what `to_string` writes: numbers only, nothing is looked up. Empty when the text is not that.
  [[nodiscard]] static address parse(std::string_view text) noexcept;
  /// Any address of this host, for both families where the system has both.
  [[nodiscard]] static address any(std::uint16_t port) noexcept;

  [[nodiscard]] bool empty() const noexcept { return length_ == 0; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] address with_port(std::uint16_t port) const noexcept;
  /// Reaches only this host.
  [[nodiscard]] bool is_loopback() const noexcept;
  /// Means something only together with an interface of the process that uses it (169.254/16, fe80::/10).
  [[nodiscard]] bool is_link_local() const noexcept;

  /// "10.0.0.1:4711", "[2001:db8::1]:4711".
  [[nodiscard]] std::string to_string() const;
  /// The same without port and brackets.
  [[nodiscard]] std::string host() const;

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }

  /// The same family, number and port.
  bool operator==(const address& other) const noexcept;

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

/// Every address that the host's name stands for, those that this host would rather use first; at least one. A name
/// service may learn a name later, as of a pod that has just started: asks again until the deadline, then throws
/// configuration_error. Asks the name service, which for a name (not for a number) may take as
/// long as the system's resolver was told to wait.
[[nodiscard]] std::vector<address> resolve(const host_port& where, clock::time_point until = {});

/// An address of this host and the interface it belongs to.
struct interface_address {
  std::string interface;  ///< "eth0"
  address where;          ///< its port is 0
};

/// Those of all interfaces that are up, as the system lists them, without those that are link-local.
[[nodiscard]] std::vector<interface_address> all_interface_addresses();

/// Under which of its addresses this host is to be reached. `chosen` is "auto" (all that reach beyond this host; the
/// loopback where there are no others), "here" (the loopback, for a job of one host), or a comma-separated list of
/// interfaces by name ("eth0"), of subnets
/// ("10.0.0.0/8", "2001:db8::/32") and of single addresses; keeps their order. Throws configuration_error, which
/// begins with `origin` and lists what there is, when a part of the list is none of this host's.
[[nodiscard]] std::vector<address> own_addresses(std::string_view chosen, const std::string& origin);

/// Whether the address is one of this host's (and of this network namespace's).
[[nodiscard]] bool is_own(const address& where);

}}}  // namespace muster::v0::detail
