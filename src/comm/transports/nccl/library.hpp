// NCCL's answers as errors, and its names for muster's.
#pragma once

#include <nccl.h>

#include <exception>
#include <string>

#include <muster/comm/transports/nccl/call.hpp>

namespace muster::inline v0::detail {

[[nodiscard]] ncclDataType_t nccl_type(dtype type);
[[nodiscard]] ncclRedOp_t nccl_operation(operation op);
[[nodiscard]] const char* name_of(nccl::device_call::kind what) noexcept;

/// What an answer of NCCL's other than ncclSuccess means: peer_failure, naming no rank, for a connection that broke;
/// configuration_error for a call NCCL does not take; else muster::error. `comm` may be null.
[[nodiscard]] std::exception_ptr nccl_failure(ncclResult_t answer, const std::string& what, ncclComm_t comm);

/// Puts one call on a stream.
ncclResult_t put(const nccl::device_call& call, ncclComm_t comm, cudaStream_t stream);

}  // namespace muster::inline v0::detail
