// What the system has seen of a connection.
#pragma once

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// One system call; all zeros where the system does not say.
[[nodiscard]] link_quality quality_of(int file) noexcept;

}}}  // namespace muster::v0::detail
