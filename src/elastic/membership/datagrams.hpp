// Words between members: datagrams that prove that they are of this job.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "../../comm/net/address.hpp"
#include "../../comm/net/handshake.hpp"
#include "../../core/descriptor.hpp"

namespace muster::inline v0::detail {

/// A UDP socket of this process. Each datagram carries an HMAC-SHA-256 over itself; what does not fit the token is
/// dropped. Nothing is sent again, no order is guaranteed, and no call waits.
class datagram_socket {
 public:
  /// `chosen`: under which addresses it is reached, as `own_addresses` takes it.
  datagram_socket(std::string_view chosen, const std::string& origin, std::string_view token);

  /// Where others reach it: "address:port address:port ...".
  [[nodiscard]] const std::string& place() const noexcept { return place_; }
  [[nodiscard]] int file() const noexcept { return file_.get(); }

  /// Reads a place; `here` when it is one of this very host, which is reached over the loopback too.
  [[nodiscard]] std::vector<address> read_place(std::string_view place, bool here) const;
  /// To each of them: copies do no harm.
  void send(std::string_view text, const std::vector<address>& to) const noexcept;
  /// The next that is genuine; nothing when there is none now.
  [[nodiscard]] std::optional<std::string> receive();

 private:
  descriptor file_;
  job_secret secret_;
  std::string place_;
  std::string room_;
};

}  // namespace muster::inline v0::detail
