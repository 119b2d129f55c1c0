#include "library.hpp"

#include <muster/core/error.hpp>

namespace muster::inline v0::detail {

ncclDataType_t nccl_type(dtype type) {
  switch (type) {
    case dtype::int8:
      return ncclInt8;
    case dtype::uint8:
      return ncclUint8;
    case dtype::int32:
      return ncclInt32;
    case dtype::uint32:
      return ncclUint32;
    case dtype::int64:
      return ncclInt64;
    case dtype::uint64:
      return ncclUint64;
    case dtype::float16:
      return ncclFloat16;
    case dtype::bfloat16:
      return ncclBfloat16;
    case dtype::float32:
      return ncclFloat32;
    case dtype::float64:
      return ncclFloat64;
    default:
      throw configuration_error("NCCL has no " + std::string(to_string(type)) + " (programming error); report it");
  }
}

ncclRedOp_t nccl_operation(operation op) {
  switch (op) {
    case operation::product:
      return ncclProd;
    case operation::min:
      return ncclMin;
    case operation::max:
      return ncclMax;
    case operation::mean:
      return ncclAvg;
    default:
      return ncclSum;
  }
}

const char* name_of(nccl::device_call::kind what) noexcept {
  constexpr const char* names[] = {"allreduce",      "reduce", "broadcast", "allgather",
                                   "reduce_scatter", "send",   "receive"};
  return names[static_cast<std::size_t>(what)];
}

std::exception_ptr nccl_failure(ncclResult_t answer, const std::string& what, ncclComm_t comm) {
  std::string why = ncclGetErrorString(answer);
  if (const char* const more = ncclGetLastError(comm); more != nullptr && *more != '\0')
    why += ", " + std::string(more);
  switch (answer) {
    case ncclSystemError:
    case ncclRemoteError:
      return std::make_exception_ptr(
          peer_failure({}, what + " failed (NCCL says: " + why + "); look at the other ranks' messages"));
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return std::make_exception_ptr(configuration_error(what + " was refused (NCCL says: " + why +
                                                         "); every rank needs a device of its own and the same calls"));
    default:
      return std::make_exception_ptr(
          error(error_kind::other, what + " failed (NCCL says: " + why + "); set NCCL_DEBUG=INFO for details"));
  }
}

ncclResult_t put(const nccl::device_call& call, ncclComm_t comm, cudaStream_t stream) {
  using kind = nccl::device_call::kind;
  const auto type = nccl_type(call.type);
  const auto op = nccl_operation(call.op);
  switch (call.what) {
    case kind::reduce:
      return ncclReduce(call.in, call.out, call.count, type, op, call.peer, comm, stream);
    case kind::broadcast:
      return ncclBroadcast(call.in, call.out, call.count, type, call.peer, comm, stream);
    case kind::allgather:
      return ncclAllGather(call.in, call.out, call.count, type, comm, stream);
    case kind::reduce_scatter:
      return ncclReduceScatter(call.in, call.out, call.count, type, op, comm, stream);
    case kind::send:
      return ncclSend(call.in, call.count, type, call.peer, comm, stream);
    case kind::receive:
      return ncclRecv(call.out, call.count, type, call.peer, comm, stream);
    case kind::allreduce:
      break;
  }
  return ncclAllReduce(call.in, call.out, call.count, type, op, comm, stream);
}

}  // namespace muster::inline v0::detail
