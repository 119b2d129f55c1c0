// Heartbeats between members: datagrams that prove that their sender belongs to this job.
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>

#include <muster/comm/net/address.hpp>
#include <muster/comm/net/handshake.hpp>
#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::size_t mac_bytes = job_secret::mac_bytes;
inline constexpr std::size_t max_datagram_bytes = 60000;

/// A UDP socket for heartbeats. Each datagram begins with a mark of the job and an HMAC-SHA-256 over the rest.
/// Datagrams that do not match the token are dropped. A filter on the mark drops them before they take room in the
/// socket, so that a flood costs only its sender. Lost datagrams are not sent again, no order is guaranteed, and no
/// call waits.
class datagram_socket {
 public:
  /// Binds a socket. `interface` selects the addresses under which the socket is reachable, as in `own_addresses`.
  datagram_socket(std::string_view interface, const std::string& origin, std::string_view token)
      : buffer_(max_datagram_bytes, '\0') {
    const std::array<std::string_view, 2> parts{"words between members", token};
    secret_ = job_secret(parts);
    mark_ = secret_.sign("mark of the job").substr(0, mark_bytes);
    const auto addresses = own_addresses(interface, origin);
    const int family = addresses.front().family();
    file_ = descriptor(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);  // otherwise all zeros: every address, a free port
    if (addresses.front().is_loopback()) std::memcpy(&any, addresses.front().get(), addresses.front().length());
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (!file_ || ::bind(file_.get(), reinterpret_cast<const sockaddr*>(&any), length) != 0 ||
        ::getsockname(file_.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0) {
      throw error(error_kind::other, "the job's members cannot exchange heartbeats (no datagram socket: " +
                                         std::string(std::strerror(errno)) + "); check the limits of the host");
    }
    drop_unmarked();
    const auto port = address(reinterpret_cast<const sockaddr*>(&any), length).port();
    for (const auto& endpoint : addresses) {
      if (endpoint.family() == family) endpoints_ += endpoint.with_port(port).to_string() + " ";
    }
  }

  /// Returns the addresses at which other processes reach the socket: "address:port address:port ...".
  [[nodiscard]] const std::string& endpoints() const noexcept { return endpoints_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

  /// Parses the text of a process's `endpoints` and returns its first four addresses. `same_host`: true for a process
  /// on the local host; then returns the loopback and the first address.
  [[nodiscard]] std::vector<address> parse_endpoints(std::string_view list, bool same_host) const {
    constexpr std::size_t limit = 4;
    std::istringstream texts{std::string(list)};
    std::vector<address> read;
    for (std::string text; read.size() < limit && texts >> text;) {
      const auto endpoint = address::parse(text);
      if (same_host) {
        const std::string loopback = endpoint.family() == AF_INET6 ? "[::1]:" : "127.0.0.1:";
        return {address::parse(loopback + std::to_string(endpoint.port())), endpoint};
      }
      read.push_back(endpoint);
    }
    return read;
  }

  /// Sends the text to each address. A process that receives the text at several addresses ignores the copies.
  void send(std::string_view text, const std::vector<address>& recipients) const noexcept {
    try {
      if (text.size() > max_datagram_bytes - mark_bytes - mac_bytes) return;
      const std::string datagram = mark_ + secret_.sign(text) + std::string(text);
      for (const auto& recipient : recipients)
        (void)::sendto(file_.get(), datagram.data(), datagram.size(), MSG_NOSIGNAL, recipient.get(),
                       recipient.length());
    } catch (const std::exception&) {  // as if the datagram were lost on the way
    }
  }

  /// Returns the next genuine datagram. Returns nothing when none is left, or after looking at `budget` datagrams.
  /// Lowers `budget` by the number of datagrams that it has looked at.
  [[nodiscard]] std::optional<std::string> receive(std::size_t& budget) {
    for (; budget > 0; --budget) {
      sockaddr_storage storage{};
      socklen_t length = sizeof storage;
      auto* const sender = reinterpret_cast<sockaddr*>(&storage);
      const auto n = ::recvfrom(file_.get(), buffer_.data(), buffer_.size(), 0, sender, &length);
      if (n < 0 && (errno == ECONNREFUSED || errno == EINTR)) continue;  // an error of an earlier send
      if (n < 0) return std::nullopt;
      const std::string_view datagram(buffer_.data(), static_cast<std::size_t>(n));
      if (datagram.size() < mark_bytes + mac_bytes || !datagram.starts_with(mark_)) continue;
      const auto text = datagram.substr(mark_bytes + mac_bytes);
      if (!secret_.has_signed(text, datagram.substr(mark_bytes, mac_bytes))) continue;
      sender_ = address(sender, length);
      --budget;
      return std::string(text);
    }
    return std::nullopt;
  }
  /// Returns the sender of the last datagram that was received.
  [[nodiscard]] const address& sender() const noexcept { return sender_; }

 private:
  static constexpr std::size_t mark_bytes = 8;

  // Attaches a filter to the socket. The kernel runs it on the UDP header, 8 bytes, and the datagram behind the header.
  // If the filter cannot be attached, `receive` alone checks the mark.
  void drop_unmarked() const noexcept {
    const auto word = [this](std::size_t at) {
      std::uint32_t number = 0;
      for (std::size_t k = 0; k < 4; ++k) number = number << 8 | static_cast<unsigned char>(mark_[at + k]);
      return number;
    };
    sock_filter unmarked[] = {{BPF_LD | BPF_W | BPF_ABS, 0, 0, 8},  {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, word(0)},
                              {BPF_LD | BPF_W | BPF_ABS, 0, 0, 12}, {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, word(4)},
                              {BPF_RET | BPF_K, 0, 0, ~0U},         {BPF_RET | BPF_K, 0, 0, 0}};
    const sock_fprog filter{std::size(unmarked), unmarked};
    (void)::setsockopt(file_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
  }

  descriptor file_;
  address sender_;
  job_secret secret_;
  std::string mark_;
  std::string endpoints_;
  std::string buffer_;
};

}}}  // namespace muster::v0::detail
