// How long a rank waits for a server of data that is away.
#pragma once

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Limits the time for which this process waits for a server of data, because other ranks wait for this rank
/// meanwhile: they must hear of the server before their own deadline. Thread safe.
void limit_source_patience(seconds limit) noexcept;
/// Returns `timeout`, or the limit if that is shorter. Thread safe.
[[nodiscard]] seconds within_source_patience(seconds timeout) noexcept;

}}}  // namespace muster::v0::detail

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
