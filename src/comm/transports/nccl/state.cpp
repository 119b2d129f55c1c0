#include "state.hpp"

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

#include "../../../core/device/check.hpp"
#include "../../group/group_state.hpp"
#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

using call_kind = nccl::device_call::kind;

// ---- NCCL's terms ----

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

const char* name_of(call_kind what) noexcept {
  constexpr const char* names[] = {"allreduce",      "reduce", "broadcast", "allgather",
                                   "reduce_scatter", "send",   "receive"};
  return names[static_cast<std::size_t>(what)];
}

ncclResult_t put(const nccl::device_call& call, bool alone, ncclComm_t comm, cudaStream_t stream) {
  const auto type = type_of(call.type);
  // What one rank alone combines is what it brings. NCCL 2.28.9's mean leaves out the last of 65537 doubles then.
  const auto op = alone ? ncclSum : op_of(call.op);
  switch (call.what) {
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

bool is_good(ncclResult_t answer) noexcept { return answer == ncclSuccess || answer == ncclInProgress; }

// ---- what a rank says of itself before they connect ----

struct card {
  int version = 0;
  char device[60] = {};  // its place on the bus
  std::uint64_t host = 0;
  ncclUniqueId id{};  // of rank 0
};

card make_card(bool root) {
  card mine;
  check_nccl(ncclGetVersion(&mine.version), "ncclGetVersion");
  check_cuda(cudaDeviceGetPCIBusId(mine.device, sizeof mine.device, current_device()), "cudaDeviceGetPCIBusId");
  mine.host = digest().add(host_identity(settings())).value();
  if (root) check_nccl(ncclGetUniqueId(&mine.id), "ncclGetUniqueId");
  return mine;
}

void check_cards(std::span<const card> cards) {
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    if (cards[rank].version != cards[0].version) {
      throw configuration_error("rank 0 runs with NCCL " + std::to_string(cards[0].version) + " and rank " +
                                std::to_string(rank) + " with " + std::to_string(cards[rank].version) +
                                " (different versions do not work together); install one version on all hosts");
    }
    for (std::size_t other = 0; other < rank; ++other) {
      if (cards[other].host != cards[rank].host || std::strcmp(cards[other].device, cards[rank].device) != 0) continue;
      throw configuration_error("ranks " + std::to_string(other) + " and " + std::to_string(rank) +
                                " have the same device, " + cards[rank].device +
                                " (NCCL needs one device for each rank); call use_device with the local rank, or have "
                                "the group sum gradients, by gradients_on(arena)");
    }
  }
}

}  // namespace

void check_nccl(ncclResult_t answer, const std::string& what, ncclComm_t comm) {
  if (answer == ncclSuccess) return;
  std::string why = ncclGetErrorString(answer);
  if (const char* const more = ncclGetLastError(comm); more != nullptr && *more != '\0')
    why += ", " + std::string(more);
  switch (answer) {
    case ncclSystemError:
    case ncclRemoteError:
      throw peer_failure({}, what + " failed (NCCL says: " + why + "); look at the other ranks' messages");
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      throw configuration_error(what + " was refused (NCCL says: " + why +
                                "); every rank needs a device of its own and the same calls");
    default:
      throw error(error_kind::other, what + " failed (NCCL says: " + why + "); set NCCL_DEBUG=INFO for details");
  }
}

// ---- connecting ----

nccl_state::nccl_state(group& ranks, seconds timeout)
    : ranks_(ranks.state()), rank_(ranks.rank()), size_(ranks.size()), device_(current_device()), timeout_(timeout) {
  const card mine = make_card(rank_ == 0);
  std::vector<card> cards(static_cast<std::size_t>(size_));
  allgather(ranks, std::span(&mine, 1), std::span(cards), {.timeout = timeout});
  check_cards(cards);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto until = deadline_after(timeout_);
  settle(ncclCommInitRankConfig(&comm_, size_, cards[0].id, rank_, &config), "connecting devices by NCCL", until);
}

void nccl_state::settle(ncclResult_t answer, const std::string& what, clock::time_point until) {
  while (answer == ncclInProgress) {
    look_at_group();
    if (failure_) std::rethrow_exception(failure_);
    if (clock::now() >= until) time_out(what, sequence_);
    std::this_thread::sleep_for(nccl_timing::poll);
    if (comm_ != nullptr) answer = present_answer();  // else the call has not made it yet
  }
  fail_unless_good(answer, what);
}

ncclResult_t nccl_state::present_answer() const noexcept {
  ncclResult_t answer = ncclSuccess;
  const auto asked = ncclCommGetAsyncError(comm_, &answer);
  return asked != ncclSuccess ? asked : answer;
}

void nccl_state::fail_unless_good(ncclResult_t answer, const std::string& what) {
  if (is_good(answer)) return;
  std::exception_ptr cause;
  try {
    check_nccl(answer, what, comm_);
  } catch (...) {
    cause = std::current_exception();
  }
  ask_group_for_names();
  fail(cause);
  std::rethrow_exception(failure_);
}

// ---- calls ----

void nccl_state::enter() {
  if (!failure_) look_at_group();
  if (failure_) std::rethrow_exception(failure_);
  if (const int device = current_device(); device != device_) {
    throw configuration_error("a communicator of device " + std::to_string(device_) + " was called with device " +
                              std::to_string(device) +
                              " current (its streams belong to its own device); call use_device first");
  }
}

std::uint64_t nccl_state::put_on(std::span<const nccl::device_call> calls, device_stream_ref stream,
                                 clock::time_point until) {
  const bool grouped = calls.size() != 1;
  auto answer = grouped ? ncclGroupStart() : ncclSuccess;
  for (std::size_t i = 0; i < calls.size() && is_good(answer); ++i)
    answer = put(calls[i], size_ == 1, comm_, stream.handle);
  if (grouped) {  // ended in any case, or the thread's next call would belong to it
    const auto ended = ncclGroupEnd();
    if (is_good(answer)) answer = ended;
  }
  settle(answer, name_of(calls.front().what), until);
  return sequence_++;
}

void nccl_state::look(const std::string& what) {
  if (!failure_) look_at_group();
  if (failure_) std::rethrow_exception(failure_);
  fail_unless_good(present_answer(), what);
}

nccl_operation::nccl_operation(std::shared_ptr<nccl_state> of, std::span<const nccl::device_call> calls,
                               device_stream_ref stream)
    : state_(std::move(of)),
      what_(std::string("device ") + name_of(calls.front().what)),
      deadline_(deadline_after(state_->timeout())),
      sequence_(state_->put_on(calls, stream, deadline_)),
      mark_(stream) {
  state_->under_way_.push_back(this);
}

nccl_operation::~nccl_operation() {
  try {
    if (!state_->failed()) wait();
  } catch (...) {  // it stays in the communicator
  }
  std::erase(state_->under_way_, this);
  if (state_->left_to_abort_ != nullptr) state_->left_to_abort_->push_back(std::move(mark_));
}

bool nccl_operation::test() {
  // An aborted collective is done too, without a result: hence the failure first, and again behind the mark.
  state_->look(what_);
  if (!mark_.test()) {
    if (clock::now() >= deadline_) state_->time_out(what_, sequence_);
    return false;
  }
  state_->look(what_);
  return true;
}

void nccl_operation::wait() {
  constexpr int quick = 2000;  // small collectives take microseconds, and a sleep takes sixty
  for (int turn = 0; !test(); ++turn) {
    if (turn >= quick) std::this_thread::sleep_for(nccl_timing::poll);
  }
}

// ---- the end ----

void nccl_state::look_at_group() {
  std::exception_ptr theirs;
  {
    const auto lock = ranks_->guard();
    ranks_->poll_notices();
    theirs = ranks_->failure();
  }
  if (theirs) fail(theirs);
}

void nccl_state::ask_group_for_names() {
  if (!ranks_->abilities.detects_death) return;
  const auto until = deadline_after(std::min(nccl_timing::failed_ranks, timeout_));
  while (!failure_ && clock::now() < until) {
    look_at_group();
    std::this_thread::sleep_for(nccl_timing::poll);
  }
}

void nccl_state::time_out(const std::string& what, std::uint64_t sequence) {
  fail(std::make_exception_ptr(timeout_error(what, sequence, {}, timeout_.count())));
  std::rethrow_exception(failure_);
}

void nccl_state::fail(std::exception_ptr cause) noexcept {
  if (failure_) return;
  failure_ = cause;
  {
    const auto lock = ranks_->guard();
    ranks_->abort(describe(cause), exit_status_of(cause));
  }
  let_go();
}

// A kernel of NCCL ends when it sees the abort; until then it may write to buffers, which are not ours to give back.
// The call itself waits for whatever else the device does, without a deadline, so it has a thread of its own: a kernel
// of the program that does not end keeps that one. Meanwhile even the end of an event may wait for it: the thread gets
// those, too.
void nccl_state::let_go() noexcept {
  try {
    const auto until = deadline_after(nccl_timing::abort);
    if (comm_ != nullptr) {
      const auto marks = std::make_shared<std::vector<device_event>>();
      std::packaged_task<void()> abort([comm = std::exchange(comm_, nullptr), marks] { (void)ncclCommAbort(comm); });
      const auto ended = abort.get_future();
      std::thread(std::move(abort)).detach();
      if (ended.wait_until(until) != std::future_status::ready) {
        left_to_abort_ = marks;
        return;
      }
    }
    for (const auto* one : under_way_) one->mark().wait(until);
  } catch (...) {  // a device that failed runs nothing, and says so at the next call
  }
}

nccl_state::~nccl_state() {
  if (comm_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() == 0) {
      const auto until = deadline_after(timeout_);
      settle(ncclCommFinalize(comm_), "ending NCCL", until);
      (void)ncclCommDestroy(std::exchange(comm_, nullptr));
    }
  } catch (...) {  // then it ends without the others
  }
  let_go();
}

}}}  // namespace muster::v0::detail
