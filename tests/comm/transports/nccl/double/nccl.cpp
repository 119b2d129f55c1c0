// TEST DOUBLE, never installed: NCCL among threads of one process, each of them a rank. A call is done on its stream
// when all that take part have come, by the last of them; like NCCL it finds out by itself about no call that differs
// in ways that a device would not see, but says so where it can.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "control.hpp"
#include "stream.hpp"

namespace {

using nccl_double::call;
using nccl_double::kind;
using nccl_double::size_of;

/// A collective, or a message between two, that waits for the missing ranks.
struct meeting {
  std::map<int, call> calls;  // by rank
  bool done = false;
};

/// Where the ranks of a communicator meet. Everything in it and in their communicators is under its mutex.
struct hub {
  explicit hub(int ranks) : size(ranks), members(static_cast<std::size_t>(ranks)) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<struct ncclCommState*> members;  // those that have joined
  int joined = 0;
  // By sender and receiver, or -1 twice for collectives, and number.
  std::map<std::tuple<int, int, std::uint64_t>, meeting> meetings;
  std::string trouble;
};

struct ncclCommState {
  std::shared_ptr<hub> at;
  int rank = 0;
  int device = 0;
  ncclResult_t error = ncclSuccess;
  bool gone = false;  // aborted, or dead
  std::map<std::tuple<int, int>, std::uint64_t> next;
  std::uint64_t next_turn = 0;  // its calls are done in their order, whatever the streams
  std::uint64_t turn = 0;
  std::set<void*> registered;
};

struct universe {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<hub>> hubs;
  std::uint64_t next_id = 1;
  std::atomic<std::size_t> communicators{0};
  std::atomic<std::size_t> registrations{0};
  std::atomic<std::size_t> groups{0};
};
universe& all() {
  static auto* const kept = new universe;
  return *kept;
}

std::shared_ptr<hub> hub_of(const std::string& name, int ranks) {
  const std::lock_guard lock(all().mutex);
  auto found = all().hubs[name].lock();
  if (!found) all().hubs[name] = found = std::make_shared<hub>(ranks);
  return found;
}

thread_local std::weak_ptr<ncclCommState> of_this_thread;
thread_local bool joins = true;

}  // namespace

struct ncclComm {
  std::shared_ptr<ncclCommState> state;
};

namespace {

struct placed {
  std::shared_ptr<ncclCommState> comm;
  cudaStream_t stream;
  call what;
};
thread_local int depth = 0;
thread_local std::vector<placed> waiting;

/// Under the mutex.
void arrive(ncclCommState& comm, const std::tuple<int, int, std::uint64_t>& where, const call& what) {
  hub& at = *comm.at;
  auto& here = at.meetings[where];
  here.calls[comm.rank] = what;
  const bool two = what.between_two();
  if (static_cast<int>(here.calls.size()) < (two ? 2 : at.size)) return;
  if (two) {
    const call& sent = here.calls.at(std::get<0>(where));
    const call& received = here.calls.at(std::get<1>(where));
    if (sent.count != received.count || sent.type != received.type) at.trouble = "a message of another size or type";
    const std::size_t bytes = std::min(sent.count, received.count) * size_of(sent.type);
    if (bytes > 0) std::memmove(received.out, sent.in, bytes);
  } else {
    std::vector<call> calls;
    for (const auto& [rank, one] : here.calls) calls.push_back(one);
    for (const auto& one : calls) {
      if (!one.goes_with(calls[0])) at.trouble = "the ranks' calls differ";
    }
    if (at.trouble.empty()) perform(calls);
  }
  here.done = true;
  at.changed.notify_all();
}

/// On the stream: all calls of one group, which wait for each other's peers together.
void perform_on_stream(const std::shared_ptr<ncclCommState>& comm, std::uint64_t turn,
                       const std::vector<std::pair<std::tuple<int, int, std::uint64_t>, call>>& calls) {
  hub& at = *comm->at;
  std::unique_lock lock(at.mutex);
  at.changed.wait(lock, [&] { return comm->gone || comm->turn == turn; });
  if (!comm->gone) {
    // To itself both sides are one rank's: they are put together here.
    std::map<std::tuple<int, int, std::uint64_t>, call> own;
    for (const auto& [where, what] : calls) {
      if (what.between_two() && std::get<0>(where) == std::get<1>(where)) {
        const auto [other, first] = own.emplace(where, what);
        if (first) continue;
        const call& sent = what.what == kind::send ? what : other->second;
        const call& received = what.what == kind::send ? other->second : what;
        if (sent.count > 0) std::memmove(received.out, sent.in, sent.count * size_of(sent.type));
      } else {
        arrive(*comm, where, what);
      }
    }
    for (const auto& [where, what] : calls) {
      if (what.between_two() && std::get<0>(where) == std::get<1>(where)) continue;
      at.changed.wait(lock, [&, place = where] { return comm->gone || at.meetings[place].done; });
      if (comm->gone) break;
      auto& here = at.meetings[where];
      here.calls.erase(comm->rank);
      if (here.calls.empty()) at.meetings.erase(where);
    }
  }
  ++comm->turn;
  at.changed.notify_all();
}

/// Under the mutex: takes back what it has brought and no rank has used.
void leave(ncclCommState& comm) {
  comm.gone = true;
  for (auto& [where, here] : comm.at->meetings) {
    if (!here.done) here.calls.erase(comm.rank);
  }
  auto& place = comm.at->members[static_cast<std::size_t>(comm.rank)];
  if (place == &comm) place = nullptr;
  comm.at->changed.notify_all();
}

void hand_in(std::vector<placed> calls) {
  while (!calls.empty()) {
    const auto comm = calls.front().comm;
    const auto stream = calls.front().stream;
    std::vector<std::pair<std::tuple<int, int, std::uint64_t>, call>> together;
    std::uint64_t turn = 0;
    {
      const std::lock_guard lock(comm->at->mutex);
      std::erase_if(calls, [&](const placed& one) {
        if (one.comm != comm || one.stream != stream) return false;
        std::tuple<int, int> ends{-1, -1};
        if (one.what.what == kind::send) ends = {comm->rank, one.what.peer};
        if (one.what.what == kind::receive) ends = {one.what.peer, comm->rank};
        // A message to itself is counted once by each of its sides.
        const bool own = one.what.between_two() && one.what.peer == comm->rank;
        auto& next = comm->next[own ? std::tuple<int, int>{-2, one.what.what == kind::send ? 0 : 1} : ends];
        together.emplace_back(std::tuple<int, int, std::uint64_t>{std::get<0>(ends), std::get<1>(ends), next++},
                              one.what);
        return true;
      });
      turn = comm->next_turn++;
    }
    nccl_double::put_on(stream, [comm, turn, together] { perform_on_stream(comm, turn, together); });
  }
}

ncclResult_t place(ncclComm_t comm, cudaStream_t stream, const call& what) {
  if (what.peer < 0 || what.peer >= comm->state->at->size) return ncclInvalidArgument;
  waiting.push_back({comm->state, stream, what});
  if (depth > 0) return ncclSuccess;
  hand_in(std::exchange(waiting, {}));
  return ncclInProgress;  // as a communicator that does not block may answer
}

ncclResult_t join(const std::shared_ptr<hub>& at, int rank, ncclComm_t* comm, const ncclConfig_t* config) {
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;  // a blocking one knows no deadline
  auto state = std::make_shared<ncclCommState>();
  state->at = at;
  state->rank = rank;
  (void)cudaGetDevice(&state->device);
  {
    const std::lock_guard lock(at->mutex);
    auto& seat = at->members[static_cast<std::size_t>(rank)];
    if (seat != nullptr) return ncclInvalidUsage;
    seat = state.get();
    at->joined += joins ? 1 : 0;
    at->changed.notify_all();
  }
  of_this_thread = state;
  *comm = new ncclComm{std::move(state)};
  ++all().communicators;
  return ncclInProgress;
}

ncclResult_t give_back(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->state->at->mutex);
    all().registrations -= comm->state->registered.size();
    comm->state->registered.clear();
    leave(*comm->state);
  }
  nccl_double::wait_for_device(comm->state->device);  // as NCCL's does, whatever keeps it
  delete comm;
  --all().communicators;
  return ncclSuccess;
}

}  // namespace

namespace nccl_double {

void fail_here(ncclResult_t error) {
  if (const auto comm = of_this_thread.lock()) {
    const std::lock_guard lock(comm->at->mutex);
    comm->error = error;
  }
}

void never_join_here() { joins = false; }

void die_here(bool noticed) {
  const auto comm = of_this_thread.lock();
  if (!comm) return;
  const std::lock_guard lock(comm->at->mutex);
  leave(*comm);
  for (auto* const other : comm->at->members) {
    if (other != nullptr && noticed) other->error = ncclRemoteError;
  }
}

std::size_t registrations() { return all().registrations; }
std::size_t communicators() { return all().communicators; }
std::size_t groups() { return all().groups; }

}  // namespace nccl_double

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  constexpr const char* names[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "in progress"};
  return names[static_cast<int>(result)];
}
const char* ncclGetLastError(ncclComm_t) { return nccl_double::name; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(all().mutex);
  *id = {};
  const auto name = "double " + std::to_string(all().next_id++);
  std::memcpy(id->internal, name.c_str(), name.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return join(hub_of(id.internal, ranks), rank, comm, config);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const auto& state = *comm->state;
  const std::lock_guard lock(state.at->mutex);
  *error = state.error != ncclSuccess          ? state.error
           : state.at->joined < state.at->size ? ncclInProgress
           : !state.at->trouble.empty()        ? ncclInternalError
                                               : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto& state = *comm->state;
  std::unique_lock lock(state.at->mutex);
  state.at->changed.wait(lock, [&] { return state.gone || state.turn == state.next_turn; });
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return give_back(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return give_back(comm); }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t, void** handle) {
  const std::lock_guard lock(comm->state->at->mutex);
  if (!comm->state->registered.insert(memory).second) return ncclInvalidUsage;
  ++all().registrations;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(comm->state->at->mutex);
  if (comm->state->registered.erase(handle) == 0) return ncclInvalidArgument;
  --all().registrations;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (depth == 0) return ncclInvalidUsage;
  if (--depth > 0) return ncclSuccess;
  if (waiting.size() > 1) ++all().groups;
  const bool any = !waiting.empty();
  hand_in(std::exchange(waiting, {}));
  return any ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return place(comm, stream, {kind::allreduce, in, out, count, type, op, 0});
}
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return place(comm, stream, {kind::reduce, in, out, count, type, op, root});
}
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return place(comm, stream, {kind::broadcast, in, out, count, type, ncclSum, root});
}
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return place(comm, stream, {kind::allgather, in, out, count, type, ncclSum, 0});
}
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return place(comm, stream, {kind::reduce_scatter, in, out, count, type, op, 0});
}
ncclResult_t ncclSend(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return place(comm, stream, {kind::send, in, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return place(comm, stream, {kind::receive, nullptr, out, count, type, ncclSum, peer});
}

}  // extern "C"
