#include "nccl_state.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <thread>
#include <utility>

#include <muster/comm/bootstrap/host_identity.hpp>
#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/group/group_state.hpp>
#include "../../../core/device/check.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

using call_kind = nccl::device_call::kind;

// ---- conversion to NCCL's types ----

ncclDataType_t type_of(dtype type) {
  static const std::map<dtype, ncclDataType_t> types = {{dtype::int8, ncclInt8},       {dtype::uint8, ncclUint8},
                                                        {dtype::int32, ncclInt32},     {dtype::uint32, ncclUint32},
                                                        {dtype::int64, ncclInt64},     {dtype::uint64, ncclUint64},
                                                        {dtype::float16, ncclFloat16}, {dtype::bfloat16, ncclBfloat16},
                                                        {dtype::float32, ncclFloat32}, {dtype::float64, ncclFloat64}};
  const auto found = types.find(type);
  if (found != types.end()) return found->second;
  throw configuration_error("NCCL has no " + std::string(to_string(type)) + " (programming error); report it");
}

ncclRedOp_t op_of(operation op) {
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

const char* name_of(call_kind kind) noexcept {
  constexpr const char* names[] = {"allreduce",      "reduce", "broadcast", "allgather",
                                   "reduce_scatter", "send",   "receive"};
  return names[static_cast<std::size_t>(kind)];
}

ncclResult_t start_call(const nccl::device_call& call, bool single_rank, ncclComm_t comm, cudaStream_t stream) {
  const auto type = type_of(call.type);
  // In a group with a single rank every reduction returns its input. The mean of NCCL 2.28.9 leaves out the last of
  // 65537 doubles then.
  const auto op = single_rank ? ncclSum : op_of(call.op);
  switch (call.function) {
    case call_kind::reduce:
      return ncclReduce(call.in, call.out, call.count, type, op, call.peer, comm, stream);
    case call_kind::broadcast:
      return ncclBroadcast(call.in, call.out, call.count, type, call.peer, comm, stream);
    case call_kind::allgather:
      return ncclAllGather(call.in, call.out, call.count, type, comm, stream);
    case call_kind::reduce_scatter:
      return ncclReduceScatter(call.in, call.out, call.count, type, op, comm, stream);
    case call_kind::send:
      return ncclSend(call.in, call.count, type, call.peer, comm, stream);
    case call_kind::receive:
      return ncclRecv(call.out, call.count, type, call.peer, comm, stream);
    case call_kind::allreduce:
      break;
  }
  return ncclAllReduce(call.in, call.out, call.count, type, op, comm, stream);
}

bool is_accepted(ncclResult_t code) noexcept { return code == ncclSuccess || code == ncclInProgress; }

// ---- descriptions of ranks, exchanged before they connect ----

struct rank_description {
  int version = 0;
  char device[60] = {};  // PCI bus id
  std::uint64_t host = 0;
  ncclUniqueId id{};  // of the communicator; set by rank 0
};

rank_description describe_this_rank(bool root) {
  rank_description mine;
  check_nccl(ncclGetVersion(&mine.version), "ncclGetVersion");
  check_cuda(cudaDeviceGetPCIBusId(mine.device, sizeof mine.device, current_device()), "cudaDeviceGetPCIBusId");
  mine.host = digest().add(host_identity(settings())).value();
  if (root) check_nccl(ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
  return mine;
}

void check_descriptions(std::span<const rank_description> descriptions) {
  for (std::size_t rank = 1; rank < descriptions.size(); ++rank) {
    if (descriptions[rank].version != descriptions[0].version) {
      throw configuration_error("rank 0 runs with NCCL " + std::to_string(descriptions[0].version) + " and rank " +
                                std::to_string(rank) + " with " + std::to_string(descriptions[rank].version) +
                                " (different versions are incompatible); install the same version on all hosts");
    }
    for (std::size_t earlier = 0; earlier < rank; ++earlier) {
      if (descriptions[earlier].host != descriptions[rank].host ||
          std::strcmp(descriptions[earlier].device, descriptions[rank].device) != 0)
        continue;
      throw configuration_error("ranks " + std::to_string(earlier) + " and " + std::to_string(rank) +
                                " have the same device, " + descriptions[rank].device +
                                " (NCCL needs one device for each rank); call use_device with the local rank, or have "
                                "the group sum gradients, by gradients_on(arena)");
    }
  }
}

}  // namespace

void check_nccl(ncclResult_t code, const std::string& call_name, ncclComm_t comm) {
  if (code == ncclSuccess) return;
  std::string message = ncclGetErrorString(code);
  if (const char* const details = ncclGetLastError(comm); details != nullptr && *details != '\0')
    message += ", " + std::string(details);
  switch (code) {
    case ncclSystemError:
    case ncclRemoteError:
      throw peer_failure({}, call_name + " failed (NCCL reports: " + message + "); see the errors of the other ranks");
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      throw configuration_error(call_name + " was refused (NCCL reports: " + message +
                                "); every rank needs its own device and the same calls");
    default:
      throw error(error_kind::other,
                  call_name + " failed (NCCL reports: " + message + "); set NCCL_DEBUG=INFO for details");
  }
}

// ---- connecting ----

nccl_state::nccl_state(group& ranks, seconds timeout)
    : group_(ranks.state()), rank_(ranks.rank()), size_(ranks.size()), device_(current_device()), timeout_(timeout) {
  const rank_description mine = describe_this_rank(rank_ == 0);
  std::vector<rank_description> descriptions(static_cast<std::size_t>(size_));
  allgather(ranks, std::span(&mine, 1), std::span(descriptions), {.timeout = timeout});
  check_descriptions(descriptions);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto deadline = deadline_after(timeout_);
  wait_until_accepted(ncclCommInitRankConfig(&comm_, size_, descriptions[0].id, rank_, &config),
                      "connecting devices by NCCL", deadline);
}

void nccl_state::wait_until_accepted(ncclResult_t code, const std::string& call_name, clock::time_point deadline) {
  while (code == ncclInProgress) {
    poll_group();
    if (failure_) std::rethrow_exception(failure_);
    if (clock::now() >= deadline) time_out(call_name, sequence_);
    std::this_thread::sleep_for(nccl_timing::poll);
    if (comm_ != nullptr) code = async_result();  // otherwise the call has not created the communicator yet
  }
  require_success(code, call_name);
}

ncclResult_t nccl_state::async_result() const noexcept {
  ncclResult_t result = ncclSuccess;
  const auto call_result = ncclCommGetAsyncError(comm_, &result);
  return call_result != ncclSuccess ? call_result : result;
}

void nccl_state::require_success(ncclResult_t code, const std::string& call_name) {
  if (is_accepted(code)) return;
  std::exception_ptr cause;
  try {
    check_nccl(code, call_name, comm_);
  } catch (...) {
    cause = std::current_exception();
  }
  wait_for_failed_ranks();
  fail(cause);
  std::rethrow_exception(failure_);
}

// ---- calls ----

void nccl_state::check_before_call() {
  if (!failure_) poll_group();
  if (failure_) std::rethrow_exception(failure_);
  if (const int device = current_device(); device != device_) {
    throw configuration_error("a communicator of device " + std::to_string(device_) + " was called with device " +
                              std::to_string(device) +
                              " current (its streams belong to its own device); call use_device first");
  }
}

std::uint64_t nccl_state::start_calls(std::span<const nccl::device_call> calls, device_stream_ref stream,
                                      clock::time_point deadline) {
  const bool grouped = calls.size() != 1;
  auto result = grouped ? ncclGroupStart() : ncclSuccess;
  for (std::size_t i = 0; i < calls.size() && is_accepted(result); ++i)
    result = start_call(calls[i], size_ == 1, comm_, stream.handle);
  if (grouped) {  // the group is ended in any case; otherwise the thread's next call would belong to it
    const auto ended = ncclGroupEnd();
    if (is_accepted(result)) result = ended;
  }
  wait_until_accepted(result, name_of(calls.front().function), deadline);
  return sequence_++;
}

void nccl_state::check(const std::string& call_name) {
  if (!failure_) poll_group();
  if (failure_) std::rethrow_exception(failure_);
  require_success(async_result(), call_name);
}

nccl_operation::nccl_operation(std::shared_ptr<nccl_state> state, std::span<const nccl::device_call> calls,
                               device_stream_ref stream)
    : state_(std::move(state)),
      operation_(std::string("device ") + name_of(calls.front().function)),
      deadline_(deadline_after(state_->timeout())),
      sequence_(state_->start_calls(calls, stream, deadline_)),
      end_event_(stream) {
  state_->pending_.push_back(this);
}

nccl_operation::~nccl_operation() {
  try {
    if (!state_->failed()) (void)wait_for(seconds::max());
  } catch (...) {  // the failure is stored in the communicator
  }
  std::erase(state_->pending_, this);
  if (state_->events_after_abort_ != nullptr) state_->events_after_abort_->push_back(std::move(end_event_));
}

bool nccl_operation::test() {
  // An aborted collective is complete too, without a result. So failures are checked first, and again after the end
  // event.
  state_->check(operation_);
  if (!end_event_.test()) {
    if (clock::now() >= deadline_) state_->time_out(operation_, sequence_);
    return false;
  }
  state_->check(operation_);
  return true;
}

bool nccl_operation::wait_for(seconds limit) {
  constexpr int quick = 2000;  // small collectives take microseconds, and a sleep takes sixty microseconds
  const auto end = deadline_after(limit);
  for (int turn = 0; !test(); ++turn) {
    if (clock::now() >= end) return false;
    if (turn >= quick) std::this_thread::sleep_for(nccl_timing::poll);
  }
  return true;
}

// ---- the end ----

void nccl_state::poll_group() {
  std::exception_ptr group_failure;
  {
    const auto lock = group_->guard();
    group_->handle_control_messages();
    group_failure = group_->failure();
  }
  if (group_failure) fail(group_failure);
}

void nccl_state::wait_for_failed_ranks() {
  if (!group_->abilities.detects_death) return;
  const auto deadline = deadline_after(std::min(nccl_timing::failed_ranks, timeout_));
  while (!failure_ && clock::now() < deadline) {
    poll_group();
    std::this_thread::sleep_for(nccl_timing::poll);
  }
}

void nccl_state::time_out(const std::string& call_name, std::uint64_t sequence) {
  fail(std::make_exception_ptr(timeout_error(call_name, sequence, {}, timeout_.count())));
  std::rethrow_exception(failure_);
}

void nccl_state::fail(std::exception_ptr cause) noexcept {
  if (failure_) return;
  failure_ = cause;
  {
    const auto lock = group_->guard();
    group_->abort(describe(cause), exit_status_of(cause));
  }
  abort_communicator();
}

// Aborts NCCL's communicator. A kernel of NCCL ends when it detects the abort. Until then the kernel may write to the
// caller's buffers. ncclCommAbort waits without a deadline for all other work on the device, so it runs on its own
// thread: a kernel of the program that does not end blocks only that thread. Meanwhile even the destruction of an event
// may block, so that thread also owns the end events.
void nccl_state::abort_communicator() noexcept {
  try {
    const auto deadline = deadline_after(nccl_timing::abort);
    if (comm_ != nullptr) {
      const auto end_events = std::make_shared<std::vector<device_event>>();
      std::packaged_task<void()> abort(
          [comm = std::exchange(comm_, nullptr), end_events] { (void)ncclCommAbort(comm); });
      const auto abort_done = abort.get_future();
      std::thread(std::move(abort)).detach();
      if (abort_done.wait_until(deadline) != std::future_status::ready) {
        events_after_abort_ = end_events;
        return;
      }
    }
    for (const auto* pending : pending_) pending->mark().wait(deadline);
  } catch (...) {  // a failed device runs nothing, and reports the error at the next call
  }
}

nccl_state::~nccl_state() {
  if (comm_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() == 0) {
      const auto deadline = deadline_after(timeout_);
      wait_until_accepted(ncclCommFinalize(comm_), "ending NCCL", deadline);
      (void)ncclCommDestroy(std::exchange(comm_, nullptr));
    }
  } catch (...) {  // the communicator then ends without its peers
  }
  abort_communicator();
}

}}}  // namespace muster::v0::detail
