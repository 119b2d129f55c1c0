// How two levels get into a context.
#pragma once

#include <memory>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What two levels can do, with that transport between hosts of which one has several ranks.
[[nodiscard]] inline transport_abilities hierarchical_abilities(transport_abilities between) noexcept {
  between.name = "hierarchical";
  between.native_collectives = between.native_first = true;
  return between;
}

/// Finds out over `between`, which reaches all ranks, which ranks share a host (`host_identity`), and connects those
/// through memory. Collective; throws timeout_error, peer_failure, and what meeting on a host throws.
[[nodiscard]] std::unique_ptr<transport> connect_hierarchical(std::unique_ptr<transport> between,
                                                              const settings& configuration, const launch_env& launch);

}}}  // namespace muster::v0::detail
