// The collectives and the functions that start ranks, for a program that uses nothing else of muster. Compiles in half
// the time of muster.hpp.
#pragma once

#include <muster/comm/collectives/all_to_all.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/collectives/buffers.hpp>
#include <muster/comm/collectives/gather.hpp>
#include <muster/comm/collectives/packed.hpp>
#include <muster/comm/collectives/reduce.hpp>
#include <muster/comm/collectives/reduce_scatter.hpp>
#include <muster/comm/collectives/scan.hpp>
#include <muster/comm/collectives/scatter.hpp>
#include <muster/comm/collectives/uneven.hpp>
#include <muster/comm/context.hpp>
#include <muster/comm/messages.hpp>

#ifndef MUSTER_COMPILED
#include <muster/comm/detail/definitions.hpp>
#endif
