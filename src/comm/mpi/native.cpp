// MPI's own collectives, in their nonblocking form: a blocking one would know no deadline.
#include <climits>

#include <muster/core/error.hpp>

#include "transport.hpp"

namespace muster::inline v0::detail {
namespace {

MPI_Datatype type_of(dtype type) {
  switch (type) {
    case dtype::int8:
      return MPI_INT8_T;
    case dtype::uint8:
      return MPI_UINT8_T;
    case dtype::int16:
      return MPI_INT16_T;
    case dtype::uint16:
      return MPI_UINT16_T;
    case dtype::int32:
      return MPI_INT32_T;
    case dtype::uint32:
      return MPI_UINT32_T;
    case dtype::int64:
      return MPI_INT64_T;
    case dtype::uint64:
      return MPI_UINT64_T;
    case dtype::float32:
      return MPI_FLOAT;
    case dtype::float64:
      return MPI_DOUBLE;
    case dtype::extended:
      return MPI_LONG_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;  // bool and the 16-bit floats
  }
}

// min and max are left out for floating point: MPI's lose a NaN.
MPI_Op op_of(operation op, dtype type) {
  const bool floating = type == dtype::float32 || type == dtype::float64 || type == dtype::extended;
  switch (op) {
    case operation::sum:
    case operation::mean:
      return MPI_SUM;
    case operation::product:
      return MPI_PROD;
    case operation::min:
      return floating ? MPI_OP_NULL : MPI_MIN;
    case operation::max:
      return floating ? MPI_OP_NULL : MPI_MAX;
    default:
      return MPI_OP_NULL;
  }
}

}  // namespace

bool mpi_transport::native(const native_call& call, request& r) {
  const collective kind = call.mark.kind;
  const bool reduces =
      kind == collective::reduce || kind == collective::allreduce || kind == collective::reduce_scatter;
  const bool cut = kind == collective::allgather || kind == collective::reduce_scatter;
  const auto n = static_cast<std::size_t>(size_);
  if (cut && call.count % n != 0) return false;  // the forms for uneven blocks want arrays that outlive the call
  const MPI_Datatype type = reduces ? type_of(call.mark.type) : MPI_BYTE;
  const MPI_Op op = reduces ? op_of(call.mark.op, call.mark.type) : MPI_OP_NULL;
  if (reduces && (type == MPI_DATATYPE_NULL || op == MPI_OP_NULL)) return false;
  const std::size_t units = call.count * (reduces ? 1 : call.element_size) / (cut ? n : 1);
  if (units > static_cast<std::size_t>(INT_MAX)) return false;

  const int count = static_cast<int>(units);
  const int root = call.mark.root;
  const bool at_root = rank_ == root;
  const void* const in = call.in == call.out ? MPI_IN_PLACE : static_cast<const void*>(call.in);
  MPI_Request& started = begin(r, progress::kind::native).head;
  int code = MPI_SUCCESS;
  switch (kind) {
    case collective::broadcast:
      code = MPI_Ibcast(call.out, count, type, root, comm_, &started);
      break;
    case collective::reduce:
      code = MPI_Ireduce(at_root ? in : call.in, at_root ? call.out : nullptr, count, type, op, root, comm_, &started);
      break;
    case collective::allreduce:
      code = MPI_Iallreduce(in, call.out, count, type, op, comm_, &started);
      break;
    case collective::allgather: {
      const bool in_place = call.in == call.out + static_cast<std::size_t>(rank_) * units;
      code = MPI_Iallgather(in_place ? MPI_IN_PLACE : call.in, count, type, call.out, count, type, comm_, &started);
      break;
    }
    case collective::reduce_scatter:
      code = MPI_Ireduce_scatter_block(call.in, call.out, count, type, op, comm_, &started);
      break;
    case collective::gather:
      code = MPI_Igather(call.in, count, type, call.out, count, type, root, comm_, &started);
      break;
    case collective::scatter:
      code = MPI_Iscatter(call.in, count, type, call.out, count, type, root, comm_, &started);
      break;
    case collective::all_to_all:
      code = MPI_Ialltoall(call.in, count, type, call.out, count, type, comm_, &started);
      break;
    case collective::barrier:
      code = MPI_Ibarrier(comm_, &started);
      break;
    default:
      finish(r);
      return false;
  }
  check_mpi(code, "a native collective");
  return true;
}

}  // namespace muster::inline v0::detail
