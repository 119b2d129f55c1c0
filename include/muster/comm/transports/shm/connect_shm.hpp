// Connects the shm transport of a context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include <muster/comm/transports/shm/shm_transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The abilities of the shm transport before it is known whether this system detects a peer's death.
inline constexpr transport_abilities shm_abilities{
    .name = "shm",
    .native_collectives = true,
    .prefers_native = true,
    .any_source = true,
    .replaces_buffers = true,
    .concurrent_groups = true,
    .costs = {.latency = 0.5e-6, .per_byte = 1.0e-10, .reduce_per_byte = 0.5e-10}};

/// Connects `rank_count` ranks on this host. Collective. `suffix` distinguishes these ranks from other ranks of the
/// same job on the same system. Throws the exceptions of `bootstrap_host`.
[[nodiscard]] std::unique_ptr<shm_transport> connect_host(const settings& configuration, const launch_env& launch,
                                                          int rank, int rank_count, std::string_view suffix = {});

/// Connects `rank_count` ranks on this host, with memory `own` that may have been connected to other ranks before.
/// Collective over the ranks that use the same `name`. A name is used once. Fails when `is_aborted` returns true, as
/// `bootstrap_host`.
[[nodiscard]] std::unique_ptr<shm_transport> connect_anew(const std::string& name, int rank, int rank_count,
                                                          std::shared_ptr<segment> own, seconds timeout,
                                                          const std::function<bool()>& is_aborted);

/// Connects the ranks that the launcher started, which must all be on this host. Collective. Throws the exceptions of
/// `bootstrap_host`.
[[nodiscard]] std::unique_ptr<transport> connect_shm(const settings& configuration, const launch_env& launch);

}}}  // namespace muster::v0::detail
