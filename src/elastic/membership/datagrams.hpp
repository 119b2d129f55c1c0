// Words between members: datagrams that prove that they are of this job.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/error.hpp>

#include "../../comm/net/address.hpp"
#include "../../comm/net/handshake.hpp"
#include "../../core/descriptor.hpp"

namespace muster::inline v0::detail {

inline constexpr std::size_t mac_bytes = job_secret::mac_bytes;
inline constexpr std::size_t largest = 60000;

/// A UDP socket of this process. Each datagram carries an HMAC-SHA-256 over itself; what does not fit the token is
/// dropped. Nothing is sent again, no order is guaranteed, and no call waits.
class datagram_socket {
 public:
  /// `chosen`: under which addresses it is reached, as `own_addresses` takes it.
  datagram_socket(std::string_view chosen, const std::string& origin, std::string_view token) : room_(largest, '\0') {
    const std::array<std::string_view, 2> parts{"words between members", token};
    secret_ = job_secret(parts);
    const auto addresses = own_addresses(chosen, origin);
    const int family = addresses.front().family();
    file_ = descriptor(::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    sockaddr_storage any{};
    any.ss_family = static_cast<sa_family_t>(family);  // all zeros otherwise: every address, a free port
    if (addresses.front().is_loopback()) std::memcpy(&any, addresses.front().get(), addresses.front().length());
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    if (!file_ || ::bind(file_.get(), reinterpret_cast<const sockaddr*>(&any), length) != 0 ||
        ::getsockname(file_.get(), reinterpret_cast<sockaddr*>(&any), &length) != 0) {
      throw error(error_kind::other, "the members of this job cannot exchange heartbeats (no datagram socket: " +
                                         std::string(std::strerror(errno)) + "); check the limits of this host");
    }
    const auto port = address(reinterpret_cast<const sockaddr*>(&any), length).port();
    for (const auto& one : addresses) {
      if (one.family() == family) place_ += one.with_port(port).to_string() + " ";
    }
  }

  /// Where others reach it: "address:port address:port ...".
  [[nodiscard]] const std::string& place() const noexcept { return place_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

  /// Reads a place; `here` when it is one of this very host, which is reached over the loopback too.
  [[nodiscard]] std::vector<address> read_place(std::string_view place, bool here) const {
    constexpr std::size_t most = 4;
    std::istringstream words{std::string(place)};
    std::vector<address> read;
    for (std::string heartbeat; read.size() < most && words >> heartbeat;) {
      const auto one = address::parse(heartbeat);
      if (here) {
        const std::string loopback = one.family() == AF_INET6 ? "[::1]:" : "127.0.0.1:";
        return {address::parse(loopback + std::to_string(one.port())), one};
      }
      read.push_back(one);
    }
    return read;
  }

  /// To each of them: copies do no harm.
  void send(std::string_view text, const std::vector<address>& to) const noexcept {
    try {
      if (text.size() > largest - mac_bytes) return;
      const std::string whole = secret_.sign(text) + std::string(text);
      for (const auto& one : to)
        (void)::sendto(file_.get(), whole.data(), whole.size(), MSG_NOSIGNAL, one.get(), one.length());
    } catch (const std::exception&) {  // as if it were lost on the way
    }
  }

  /// The next that is genuine; nothing when there is none now.
  [[nodiscard]] std::optional<std::string> receive() {
    for (;;) {
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      auto* const sender = reinterpret_cast<sockaddr*>(&from);
      const auto n = ::recvfrom(file_.get(), room_.data(), room_.size(), 0, sender, &length);
      if (n < 0 && (errno == ECONNREFUSED || errno == EINTR)) continue;  // what became of one that was sent
      if (n < 0) return std::nullopt;
      const std::string_view whole(room_.data(), static_cast<std::size_t>(n));
      if (whole.size() < mac_bytes) continue;
      const auto text = whole.substr(mac_bytes);
      if (!secret_.has_signed(text, whole.substr(0, mac_bytes))) continue;
      sender_ = address(sender, length);
      return std::string(text);
    }
  }
  /// Of the last one that was received.
  [[nodiscard]] const address& sender() const noexcept { return sender_; }

 private:
  descriptor file_;
  address sender_;
  job_secret secret_;
  std::string place_;
  std::string room_;
};

}  // namespace muster::inline v0::detail
