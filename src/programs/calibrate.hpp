// How long the collectives take here: what muster-info --calibrate measures.
#pragma once

#include <vector>

#include <muster/comm/algorithms/profile.hpp>
#include <muster/comm/context.hpp>

/// Runs every algorithm of allreduce, broadcast, reduce, allgather, reduce_scatter and all_to_all, the transport's own
/// too, over float32 from 64 bytes to 16 MiB in memory of the context. The algorithms of one size take turns, so that a
/// slow moment of the machine is everybody's; a call takes as long as its slowest rank, and the median of all calls
/// counts. Collective; the same times at every rank. Takes some seconds, more with more ranks than cores.
std::vector<muster::measured_time> calibrate(muster::context& context, muster::group& world);
