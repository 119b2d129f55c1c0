// Measures the algorithms on a machine, and makes rules from the fastest algorithms.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

class group;

/// The time that a collective took with an algorithm.
struct measured_time {
  collective kind = collective::none;
  muster::algorithm algorithm = muster::algorithm::automatic;
  std::size_t bytes = 0;  ///< size of the whole buffer, as in `estimate`
  double seconds = 0;
};

/// Runs every algorithm of allreduce, broadcast, reduce, allgather, reduce_scatter and all_to_all, including native and
/// registered algorithms, with float32 data from 64 bytes to 16 MiB in the transport's memory. For each size the
/// algorithms take turns, so that a slow moment of the machine affects all alike. The time of a call is its slowest
/// rank's time, and the result is the median over all calls after the first round. Collective; returns the same times
/// at every rank. Takes some seconds, more with more ranks than cores. `muster-info --calibrate` calls this; a program
/// with algorithms of its own calls this and saves `fastest(times).to_string()`. Every rank calls `on_size` before each
/// size, for a report of the progress.
[[nodiscard]] std::vector<measured_time> calibrate(
    group& world, const std::function<void(collective kind, std::size_t bytes)>& on_size = {});

/// Returns the constants, none below 0, for which `estimate` has the smallest relative errors over the times, so that
/// small and large sizes count alike. `known` supplies the constants that are not fitted: `next_message` and
/// `ranks_a_core`. The times of algorithms without a model, native and registered ones, are ignored.
[[nodiscard]] transport_costs fit_costs(std::span<const measured_time> times, int rank_count,
                                        const transport_costs& known = {});

/// Returns the rules for the measured collectives. Between two sizes the choice changes at their geometric mean. The
/// search begins with the first algorithm of `algorithms_of` and changes to another only if that is faster by more than
/// 5 %, because smaller differences are noise.
[[nodiscard]] algorithm_rules fastest(std::span<const measured_time> times);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
