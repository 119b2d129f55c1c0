// The functions by which tests control the double.
#pragma once

#include <nccl.h>

#include <cstddef>

namespace nccl_double {

/// Text that every program on the double prints.
inline constexpr const char* name = "TEST DOUBLE of NCCL and of the CUDA runtime, on host memory: no device, no NCCL";

/// Makes the communicator that this thread made last report `error` from now on.
void fail_here(ncclResult_t error);
/// Makes this thread's rank die: the rank takes part in nothing any more. With `noticed` its peers' communicators
/// report ncclRemoteError. Otherwise the peers detect nothing, as with a host that lost its power.
void die_here(bool noticed);

/// Makes this thread's later communicators start to connect and never finish, as on a host whose network drops all
/// packets.
void never_join_here();

/// Returns the bytes of device memory and pinned memory that the process has allocated and not freed.
std::size_t allocated_bytes();
/// Returns the number of registered buffers.
std::size_t registrations();
/// Returns the number of communicators that are neither destroyed nor aborted.
std::size_t communicators();
/// Returns the number of ncclGroupEnd calls that ended an outermost group with more than one call.
std::size_t groups();

}  // namespace nccl_double
