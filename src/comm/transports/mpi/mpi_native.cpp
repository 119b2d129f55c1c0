// MPI's own collectives, in their nonblocking form: a blocking collective would ignore the deadline.
#include <algorithm>
#include <climits>
#include <map>
#include <optional>

#include "mpi_transport.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Returns the MPI type; MPI_DATATYPE_NULL for bool and the 16-bit floats, which MPI does not have.
MPI_Datatype type_of(dtype type) {
  static const std::map<dtype, MPI_Datatype> types = {
      {dtype::int8, MPI_INT8_T},     {dtype::uint8, MPI_UINT8_T},       {dtype::int16, MPI_INT16_T},
      {dtype::uint16, MPI_UINT16_T}, {dtype::int32, MPI_INT32_T},       {dtype::uint32, MPI_UINT32_T},
      {dtype::int64, MPI_INT64_T},   {dtype::uint64, MPI_UINT64_T},     {dtype::float32, MPI_FLOAT},
      {dtype::float64, MPI_DOUBLE},  {dtype::extended, MPI_LONG_DOUBLE}};
  const auto found = types.find(type);
  return found == types.end() ? MPI_DATATYPE_NULL : found->second;
}

// Returns the MPI operation. Min and max have none for floating point, since MPI's operations lose a NaN.
MPI_Op op_of(operation op, dtype type) {
  const bool is_floating = type == dtype::float32 || type == dtype::float64 || type == dtype::extended;
  switch (op) {
    case operation::sum:
    case operation::mean:
      return MPI_SUM;
    case operation::product:
      return MPI_PROD;
    case operation::min:
      return is_floating ? MPI_OP_NULL : MPI_MIN;
    case operation::max:
      return is_floating ? MPI_OP_NULL : MPI_MAX;
    default:
      return MPI_OP_NULL;
  }
}

// The arguments of a collective for MPI.
struct call_plan {
  MPI_Datatype type = MPI_BYTE;
  MPI_Op op = MPI_OP_NULL;
  int count = 0;                 // in units of `type`; for one rank's piece if the buffer has pieces
  std::size_t input_bytes = 0;   // bytes that this rank reads
  std::size_t output_bytes = 0;  // bytes that this rank writes
  bool in_place = false;         // the input is stored at its place in the output
};

bool reduces(collective kind) {
  return kind == collective::reduce || kind == collective::allreduce || kind == collective::reduce_scatter;
}

// Returns the plan for a call; nothing if MPI has no such type or operation, if the count does not fit an int, or if
// MPI requires arrays that outlive the call (blocks of different sizes).
std::optional<call_plan> make_plan(const collective_call& call, int rank, int rank_count) {
  const collective kind = call.kind;
  const auto n = static_cast<std::size_t>(rank_count);
  const bool has_blocks = kind == collective::allgather || kind == collective::reduce_scatter;
  if (call.is_uneven() || (has_blocks && call.count % n != 0)) return std::nullopt;
  call_plan plan;
  if (reduces(kind)) {
    plan.type = type_of(call.type);
    plan.op = op_of(call.op, call.type);
    if (plan.type == MPI_DATATYPE_NULL || plan.op == MPI_OP_NULL) return std::nullopt;
  }
  const std::size_t units = call.count * (reduces(kind) ? 1 : call.element_size) / (has_blocks ? n : 1);
  if (units > static_cast<std::size_t>(INT_MAX)) return std::nullopt;
  plan.count = static_cast<int>(units);

  const std::size_t bytes = call.count * call.element_size;
  const bool at_root = rank == call.root;
  plan.input_bytes = plan.output_bytes = bytes;
  switch (kind) {
    case collective::allgather:
      plan.input_bytes = bytes / n;
      break;
    case collective::reduce_scatter:
      plan.output_bytes = bytes / n;
      break;
    case collective::gather:
      plan.output_bytes = at_root ? bytes * n : 0;
      break;
    case collective::scatter:
      plan.input_bytes = at_root ? bytes * n : 0;
      break;
    case collective::reduce:
      plan.output_bytes = at_root ? bytes : 0;
      break;
    case collective::all_to_all:
      plan.input_bytes = plan.output_bytes = bytes * n;
      break;
    default:
      break;
  }
  const bool has_offset = kind == collective::allgather || (kind == collective::gather && at_root);
  const std::size_t offset = has_offset ? plan.input_bytes * static_cast<std::size_t>(rank) : 0;
  plan.in_place = plan.output_bytes > 0 && call.in == call.out + offset;
  return plan;
}

int start(const call_plan& p, const collective_call& call, const std::byte* input, std::byte* output, MPI_Comm comm,
          MPI_Request* started) {
  const int root = call.root;
  const void* const send_buffer = p.in_place ? MPI_IN_PLACE : static_cast<const void*>(input);
  switch (call.kind) {
    case collective::broadcast:
      return MPI_Ibcast(output, p.count, p.type, root, comm, started);
    case collective::reduce:
      return MPI_Ireduce(send_buffer, output, p.count, p.type, p.op, root, comm, started);
    case collective::allreduce:
      return MPI_Iallreduce(send_buffer, output, p.count, p.type, p.op, comm, started);
    case collective::allgather:
      return MPI_Iallgather(send_buffer, p.count, p.type, output, p.count, p.type, comm, started);
    case collective::reduce_scatter:
      return MPI_Ireduce_scatter_block(send_buffer, output, p.count, p.type, p.op, comm, started);
    case collective::gather:
      return MPI_Igather(send_buffer, p.count, p.type, output, p.count, p.type, root, comm, started);
    case collective::scatter:
      return MPI_Iscatter(send_buffer, p.count, p.type, output, p.count, p.type, root, comm, started);
    case collective::all_to_all:
      return MPI_Ialltoall(send_buffer, p.count, p.type, output, p.count, p.type, comm, started);
    default:
      return MPI_Ibarrier(comm, started);
  }
}

}  // namespace

bool mpi_transport::native(const collective_call& call, request& req) {
  const auto planned = make_plan(call, rank_, size_);
  if (!planned) return false;
  auto& state = begin(req, operation_state::kind_type::native);
  if (reduces(call.kind)) state.reduce = &call.reduce;
  req.data = call.out;
  req.bytes = planned->output_bytes;
  const std::byte* in = call.in;
  std::byte* out = call.out;
  if (std::max(planned->input_bytes, planned->output_bytes) <= native_copied_up_to) {
    out = state.private_buffer =
        state.message_slot->private_memory(std::max<std::size_t>(planned->output_bytes + planned->input_bytes, 1));
    std::byte* const input_copy = planned->in_place ? out + (call.in - call.out) : out + planned->output_bytes;
    if (planned->input_bytes > 0) std::memcpy(input_copy, call.in, planned->input_bytes);
    in = input_copy;
  }
  check_mpi(start(*planned, call, in, out, comm_, &state.head), "a native collective", comm_);
  return true;
}

}}}  // namespace muster::v0::detail
