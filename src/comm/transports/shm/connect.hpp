// How shared memory gets into a context.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/launch_env.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/env.hpp>

#include "transport.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What shared memory can do, before it is known whether this system tells of a peer's death.
inline constexpr transport_abilities shm_abilities{
    .name = "shm",
    .native_collectives = true,
    .native_first = true,
    .any_source = true,
    .moves_buffers = true,
    .concurrent_groups = true,
    .costs = {.latency = 0.5e-6, .per_byte = 1.0e-10, .reduce_per_byte = 0.5e-10}};

/// Connects `size` ranks of this host, which all call it. `suffix` tells them from others of the same job on the same
/// system. Collective; throws what `meet` throws.
[[nodiscard]] std::unique_ptr<shm_transport> connect_host(const settings& configuration, const launch_env& launch,
                                                          int rank, int size, std::string_view suffix = {});

/// Connects `size` ranks of this host that have met before, perhaps among others, with the memory that each has; those
/// of one `name` meet, and a name is used once. Gives up when `given_up` says so.
[[nodiscard]] std::unique_ptr<shm_transport> connect_anew(const std::string& name, int rank, int size,
                                                          std::shared_ptr<segment> own, seconds timeout,
                                                          const std::function<bool()>& given_up);

/// Connects the ranks that the launcher started, which must all be on this host. Collective; throws what `meet` throws.
[[nodiscard]] std::unique_ptr<transport> connect_shm(const settings& configuration, const launch_env& launch);

}}}  // namespace muster::v0::detail
