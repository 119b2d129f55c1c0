// How shared memory gets into a context.
#pragma once

#include <memory>

#include <muster/comm/any_transport.hpp>
#include <muster/comm/rendezvous/launch_env.hpp>
#include <muster/core/env.hpp>

namespace muster::inline v0::detail {

/// Connects the ranks that the launcher started, which must all be on this host. Collective; throws what `meet` throws.
[[nodiscard]] std::unique_ptr<any_transport> connect_shm(const settings& configuration, const launch_env& launch);

}  // namespace muster::inline v0::detail
