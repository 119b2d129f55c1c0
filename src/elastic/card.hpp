// How the others reach a member: what its record carries and the protocol does not read.
#pragma once

#include <string>
#include <string_view>

#include "../comm/life.hpp"

namespace muster::inline v0::detail {

/// As text: "process started udp-port addresses".
struct member_card {
  process_identity process;
  std::string words;  ///< of its datagram_socket

  [[nodiscard]] std::string encode() const;
  /// What is missing is empty.
  [[nodiscard]] static member_card decode(std::string_view text);
};

}  // namespace muster::inline v0::detail
