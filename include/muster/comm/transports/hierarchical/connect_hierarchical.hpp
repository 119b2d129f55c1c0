// Connects the hierarchical transport of a context.
#pragma once

#include <memory>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the abilities of a hierarchical transport from the abilities of its transport between hosts. Not for a
/// world with one rank on each host, which uses the transport between hosts alone.
[[nodiscard]] inline transport_abilities hierarchical_abilities(transport_abilities network) noexcept {
  network.name = "hierarchical";
  network.native_collectives = network.prefers_native = true;
  return network;
}

/// Determines over `network`, which connects all ranks, which ranks share a host (`host_identity`), and connects the
/// ranks of a host through shared memory. Collective. Throws timeout_error, peer_failure, and the exceptions of
/// `connect_host`.
[[nodiscard]] std::unique_ptr<transport> connect_hierarchical(std::unique_ptr<transport> network,
                                                              const settings& configuration, const launch_env& launch);

}}}  // namespace muster::v0::detail
