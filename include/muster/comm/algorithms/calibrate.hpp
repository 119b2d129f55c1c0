// Measures the algorithms on one machine, and makes rules of what was the fastest.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <muster/comm/algorithms/algorithm_rules.hpp>
#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 {

class group;

/// How long one collective took by one algorithm.
struct measured_time {
  collective kind = collective::none;
  muster::algorithm algorithm = muster::algorithm::automatic;
  std::size_t bytes = 0;  ///< of the whole buffer, as in `estimate`
  double seconds = 0;
};

/// Runs every algorithm of allreduce, broadcast, reduce, allgather, reduce_scatter and all_to_all, the transport's own
/// and registered ones too, over float32 from 64 bytes to 16 MiB in the transport's memory. The algorithms of one size
/// take turns, so that a slow moment of the machine counts for all; a call takes as long as its slowest rank, and the
/// median of all calls counts. Collective; the same times at every rank. Takes some seconds, more with more ranks than
/// cores. `muster-info --calibrate` is this; a program with algorithms of its own calls it and saves
/// `fastest(times).to_string()`.
[[nodiscard]] std::vector<measured_time> calibrate(group& world);

/// The constants, none below 0, with which `estimate` comes closest to the times, relative to each: what lies between
/// 64 bytes and 16 MiB counts alike. `known` has what is not fitted: `next_message` and `ranks_a_core`. Times of what
/// has no model, native and registered algorithms, are left out.
[[nodiscard]] transport_costs fit_costs(std::span<const measured_time> times, int ranks,
                                        const transport_costs& known = {});

/// The rules those times make, for the collectives that were measured. Between two sizes the choice changes at their
/// geometric mean. It begins with the first of `algorithms_of` and changes only to one that is faster by more than 5 %,
/// for less is noise.
[[nodiscard]] algorithm_rules fastest(std::span<const measured_time> times);

}}  // namespace muster::v0
