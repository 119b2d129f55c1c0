// Transports of a launcher's own that connect those of its ranks that are left when others have died.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <muster/comm/any_transport.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// A part of muster that can do that registers itself here.
struct surviving_transport {
  std::string_view name;
  /// Collective among `ranks`: the launcher's numbers of those that are left, ascending, and all that are left; this
  /// one is `self`. Their new numbers are their places there. `generation` tells one attempt from the next. Throws
  /// peer_failure when others are left than those, timeout_error by `--timeout`, configuration_error when the launcher
  /// does not go on when ranks die, or did not start this process.
  std::unique_ptr<any_transport> (*connect)(const settings& configuration, std::span<const int> ranks, int self,
                                            std::uint64_t generation);
};

void register_surviving_transport(const surviving_transport& made) noexcept;
/// Null when no part of that name is linked in that can.
[[nodiscard]] const surviving_transport* find_surviving_transport(std::string_view name) noexcept;

}  // namespace muster::inline v0::detail
