// Which algorithm a collective runs by, when nobody says: the cheapest under a model of the transport's costs.
#pragma once

#include <cstddef>
#include <span>

#include <muster/comm/algorithm.hpp>
#include <muster/comm/transport.hpp>

namespace muster::inline v0 {

/// The algorithms a collective has, the default for one or two ranks first.
[[nodiscard]] std::span<const algorithm> algorithms_of(collective kind) noexcept;

/// Seconds the model gives for `kind` over `bytes` (of the whole buffer: what a rank ends with or begins with,
/// whichever is more) among `ranks`: rounds times latency, plus the bytes on the longest path times their costs. A
/// transport's own algorithm has no model.
[[nodiscard]] double estimate(collective kind, algorithm how, std::size_t bytes, int ranks,
                              const transport_costs& costs) noexcept;

/// The algorithm with the smallest estimate. A function of its arguments alone, so that all ranks choose alike.
[[nodiscard]] algorithm choose(collective kind, std::size_t bytes, int ranks, const transport_costs& costs) noexcept;

}  // namespace muster::inline v0
