// What tests do to the double.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace nccl_double {

/// What every program that runs on the double prints.
inline constexpr const char* name = "TEST DOUBLE of NCCL and of the CUDA runtime, on host memory: no device, no NCCL";

/// This thread's communicator (the last it has made) has this to say from now on, when it is asked for errors.
void fail_here(ncclResult_t error);
/// This thread's rank dies: it takes part in nothing any more. `noticed`: its peers' communicators say ncclRemoteError;
/// otherwise they see nothing, as of a host that lost its power.
void die_here(bool noticed);

/// This thread's communicators to come begin to connect, and never do: a host whose network lets nothing through.
void never_join_here();

/// What the process has of devices, and pinned, and has not given back.
std::size_t allocated_bytes();
std::size_t registrations();
/// Communicators that were neither destroyed nor aborted.
std::size_t communicators();
/// Calls of ncclGroupEnd that ended an outermost group with more than one call in it.
std::size_t groups();

}  // namespace nccl_double
