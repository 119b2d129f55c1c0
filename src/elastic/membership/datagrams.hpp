// Words between members: datagrams that prove that they are of this job.
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

#include "../../comm/net/address.hpp"
#include "../../comm/net/handshake.hpp"
#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::size_t mac_bytes = job_secret::mac_bytes;
inline constexpr std::size_t largest = 60000;

/// A UDP socket of this process. Each datagram begins with a mark of the job and an HMAC-SHA-256 over the rest; what
/// does not fit the token is dropped, by the mark before it takes room in the socket: a flood costs its sender. Nothing
/// is sent again, no order is guaranteed, and no call waits.
class datagram_socket {
 public:
  /// `chosen`: under which addresses it is reached, as `own_addresses` takes it.
  datagram_socket(std::string_view chosen, const std::string& origin, std::string_view token) : room_(largest, '\0') {
    const std::array<std::string_view, 2> parts{"words between members", token};
    secret_ = job_secret(parts);
    mark_ = secret_.sign("mark of the job").substr(0, mark_bytes);
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
    drop_unmarked();
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
      if (text.size() > largest - mark_bytes - mac_bytes) return;
      const std::string whole = mark_ + secret_.sign(text) + std::string(text);
      for (const auto& one : to)
        (void)::sendto(file_.get(), whole.data(), whole.size(), MSG_NOSIGNAL, one.get(), one.length());
    } catch (const std::exception&) {  // as if it were lost on the way
    }
  }

  /// The next that is genuine; nothing when there is none now, or when so many have been looked at. Lowers the number.
  [[nodiscard]] std::optional<std::string> receive(std::size_t& most) {
    for (; most > 0; --most) {
      sockaddr_storage from{};
      socklen_t length = sizeof from;
      auto* const sender = reinterpret_cast<sockaddr*>(&from);
      const auto n = ::recvfrom(file_.get(), room_.data(), room_.size(), 0, sender, &length);
      if (n < 0 && (errno == ECONNREFUSED || errno == EINTR)) continue;  // what became of one that was sent
      if (n < 0) return std::nullopt;
      const std::string_view whole(room_.data(), static_cast<std::size_t>(n));
      if (whole.size() < mark_bytes + mac_bytes || !whole.starts_with(mark_)) continue;
      const auto text = whole.substr(mark_bytes + mac_bytes);
      if (!secret_.has_signed(text, whole.substr(mark_bytes, mac_bytes))) continue;
      sender_ = address(sender, length);
      --most;
      return std::string(text);
    }
    return std::nullopt;
  }
  /// Of the last one that was received.
  [[nodiscard]] const address& sender() const noexcept { return sender_; }

 private:
  static constexpr std::size_t mark_bytes = 8;

  // A filter of the system's, which sees the head of UDP, 8 bytes, before what was sent. Where it cannot be, `receive`
  // looks alone.
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
  std::string place_;
  std::string room_;
};

}}}  // namespace muster::v0::detail
