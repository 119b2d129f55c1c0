// Transports of a launcher's own that connect those that are left of its ranks, and those that join, when a group is
// made anew.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <muster/comm/any_transport.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// The group that is to be made.
struct regrouping {
  std::string job;                         ///< tells jobs apart
  std::span<const std::uint64_t> members;  ///< who they are, by new rank; all that are left, and those that join
  int self = 0;                            ///< the rank of this one
  std::uint64_t generation = 0;            ///< tells one attempt from the next
  std::function<bool()> given_up;          ///< whether this attempt is over; asked from any thread
};

/// A part of muster that can do that registers itself here.
struct surviving_transport {
  std::string_view name;
  /// Collective among the members. Throws peer_failure when others are left than those, the attempt is given up, or it
  /// cannot be used any more; timeout_error by `--timeout`; configuration_error when the launcher does not go on when
  /// ranks die, or cannot connect this process.
  std::unique_ptr<any_transport> (*connect)(const settings& configuration, const regrouping& wanted);
  /// Whether this process can still be connected by it.
  bool (*is_usable)() noexcept;
};

void register_surviving_transport(const surviving_transport& made) noexcept;
/// Null when no part of that name is linked in that can.
[[nodiscard]] const surviving_transport* find_surviving_transport(std::string_view name) noexcept;

}  // namespace muster::inline v0::detail
