// MPI's own collectives, in their nonblocking form: a blocking one would know no deadline.
#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// MPI_DATATYPE_NULL for bool and the 16-bit floats.
MPI_Datatype type_of(dtype type) {
  static const std::map<dtype, MPI_Datatype> types = {
      {dtype::int8, MPI_INT8_T},     {dtype::uint8, MPI_UINT8_T},       {dtype::int16, MPI_INT16_T},
      {dtype::uint16, MPI_UINT16_T}, {dtype::int32, MPI_INT32_T},       {dtype::uint32, MPI_UINT32_T},
      {dtype::int64, MPI_INT64_T},   {dtype::uint64, MPI_UINT64_T},     {dtype::float32, MPI_FLOAT},
      {dtype::float64, MPI_DOUBLE},  {dtype::extended, MPI_LONG_DOUBLE}};
  const auto found = types.find(type);
  return found == types.end() ? MPI_DATATYPE_NULL : found->second;
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

// A call in MPI's terms.
struct plan {
  MPI_Datatype type = MPI_BYTE;
  MPI_Op op = MPI_OP_NULL;
  int count = 0;          // in units of `type`, of one rank's piece where there are pieces
  std::size_t in = 0;     // bytes this rank reads
  std::size_t out = 0;    // and writes
  bool in_place = false;  // the input lies where the output comes
};

bool reduces(collective kind) {
  return kind == collective::reduce || kind == collective::allreduce || kind == collective::reduce_scatter;
}

// Nothing when MPI has no such type or operation, or wants arrays that outlive the call (blocks of different sizes).
std::optional<plan> make_plan(const collective_call& call, int rank, int ranks) {
  const collective kind = call.kind;
  const auto n = static_cast<std::size_t>(ranks);
  const bool cut = kind == collective::allgather || kind == collective::reduce_scatter;
  if (cut && call.count % n != 0) return std::nullopt;
  plan made;
  if (reduces(kind)) {
    made.type = type_of(call.type);
    made.op = op_of(call.op, call.type);
    if (made.type == MPI_DATATYPE_NULL || made.op == MPI_OP_NULL) return std::nullopt;
  }
  const std::size_t units = call.count * (reduces(kind) ? 1 : call.element_size) / (cut ? n : 1);
  if (units > static_cast<std::size_t>(INT_MAX)) return std::nullopt;
  made.count = static_cast<int>(units);

  const std::size_t whole = call.count * call.element_size;
  const bool at_root = rank == call.root;
  made.in = made.out = whole;
  switch (kind) {
    case collective::allgather:
      made.in = whole / n;
      break;
    case collective::reduce_scatter:
      made.out = whole / n;
      break;
    case collective::gather:
      made.out = at_root ? whole * n : 0;
      break;
    case collective::scatter:
      made.in = at_root ? whole * n : 0;
      break;
    case collective::reduce:
      made.out = at_root ? whole : 0;
      break;
    case collective::all_to_all:
      made.in = made.out = whole * n;
      break;
    default:
      break;
  }
  const bool has_place = kind == collective::allgather || (kind == collective::gather && at_root);
  const std::size_t place = has_place ? made.in * static_cast<std::size_t>(rank) : 0;
  made.in_place = made.out > 0 && call.in == call.out + place;
  return made;
}

int start(const plan& p, const collective_call& call, const std::byte* from, std::byte* to, MPI_Comm comm,
          MPI_Request* started) {
  const int root = call.root;
  const void* const in = p.in_place ? MPI_IN_PLACE : static_cast<const void*>(from);
  switch (call.kind) {
    case collective::broadcast:
      return MPI_Ibcast(to, p.count, p.type, root, comm, started);
    case collective::reduce:
      return MPI_Ireduce(in, to, p.count, p.type, p.op, root, comm, started);
    case collective::allreduce:
      return MPI_Iallreduce(in, to, p.count, p.type, p.op, comm, started);
    case collective::allgather:
      return MPI_Iallgather(in, p.count, p.type, to, p.count, p.type, comm, started);
    case collective::reduce_scatter:
      return MPI_Ireduce_scatter_block(in, to, p.count, p.type, p.op, comm, started);
    case collective::gather:
      return MPI_Igather(in, p.count, p.type, to, p.count, p.type, root, comm, started);
    case collective::scatter:
      return MPI_Iscatter(in, p.count, p.type, to, p.count, p.type, root, comm, started);
    case collective::all_to_all:
      return MPI_Ialltoall(in, p.count, p.type, to, p.count, p.type, comm, started);
    default:
      return MPI_Ibarrier(comm, started);
  }
}

}  // namespace

bool mpi_transport::native(const collective_call& call, request& r) {
  const auto planned = make_plan(call, rank_, size_);
  if (!planned) return false;
  auto& p = begin(r, progress::kind::native);
  if (reduces(call.kind)) p.reduce = &call.reduce;
  r.data = call.out;
  r.bytes = planned->out;
  const std::byte* in = call.in;
  std::byte* out = call.out;
  if (std::max(planned->in, planned->out) <= native_copied_up_to) {
    out = p.landing = p.held->land(std::max<std::size_t>(planned->out + planned->in, 1));
    std::byte* const copied = planned->in_place ? out + (call.in - call.out) : out + planned->out;
    if (planned->in > 0) std::memcpy(copied, call.in, planned->in);
    in = copied;
  }
  check_mpi(start(*planned, call, in, out, comm_, &p.head), "a native collective", comm_);
  return true;
}

}}}  // namespace muster::v0::detail
