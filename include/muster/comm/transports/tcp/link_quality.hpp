// Measurements of a connection by the system.
#pragma once

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the measurements of a socket; all zeros if the system provides none. Costs one system call.
[[nodiscard]] link_quality quality_of(int socket) noexcept;

}}}  // namespace muster::v0::detail
