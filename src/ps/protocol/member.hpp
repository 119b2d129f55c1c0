// Which process is meant: a place in the job, and which of the processes that had it one after the other.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace muster::inline v0::ps {

/// Places are small numbers: the rank in a group that was launched together.
using node_id = std::uint32_t;
inline constexpr node_id no_node = 0xffffffff;
/// No place is as high: what a message says is not believed beyond it.
inline constexpr node_id most_nodes = 65536;

/// A server or a worker. A process that takes the place of one that died counts its incarnation up, so that what the
/// dead one said is not taken for its own.
struct member {
  node_id at = no_node;
  std::uint32_t incarnation = 0;

  friend auto operator<=>(const member&, const member&) = default;
};

/// "3", or "3.2" for a later incarnation than the first.
[[nodiscard]] inline std::string to_string(const member& who) {
  return std::to_string(who.at) + (who.incarnation > 1 ? "." + std::to_string(who.incarnation) : "");
}

}  // namespace muster::inline v0::ps
