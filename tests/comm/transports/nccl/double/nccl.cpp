// TEST DOUBLE, never installed: NCCL among the threads of a process, each of which is a rank. The last rank whose call
// arrives performs the call, on its stream. Like NCCL, the double does not have to detect calls that differ in ways
// which a device would not detect, but it reports them where it can.
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

/// A collective or a message whose calls have not arrived from all its ranks.
struct rendezvous {
  std::map<int, call> calls;  // by rank
  bool done = false;
};

/// The ranks of a communicator. The mutex guards all fields here and in the ranks' ncclCommState.
struct hub {
  explicit hub(int ranks) : size(ranks), members(static_cast<std::size_t>(ranks)) {}

  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<struct ncclCommState*> members;  // null for a rank that has not joined
  int joined = 0;
  // Key: sender and receiver (both -1 for collectives), and number.
  std::map<std::tuple<int, int, std::uint64_t>, rendezvous> rendezvous_table;
  std::string problem;
};

struct ncclCommState {
  std::shared_ptr<hub> comm_hub;
  int rank = 0;
  int device = 0;
  ncclResult_t error = ncclSuccess;
  bool ended = false;  // set when aborted or dead
  std::map<std::tuple<int, int>, std::uint64_t> next;
  std::uint64_t next_turn = 0;  // calls are performed in their order, on whichever streams they are
  std::uint64_t turn = 0;
  std::set<void*> registered;
};

struct registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<hub>> hubs;
  std::uint64_t next_id = 1;
  std::atomic<std::size_t> communicators{0};
  std::atomic<std::size_t> registrations{0};
  std::atomic<std::size_t> groups{0};
};
registry& all() {
  static auto* const instance = new registry;
  return *instance;
}

std::shared_ptr<hub> hub_of(const std::string& name, int ranks) {
  const std::lock_guard lock(all().mutex);
  auto found = all().hubs[name].lock();
  if (!found) all().hubs[name] = found = std::make_shared<hub>(ranks);
  return found;
}

thread_local std::weak_ptr<ncclCommState> communicator_of_this_thread;
thread_local bool joins = true;

}  // namespace

struct ncclComm {
  std::shared_ptr<ncclCommState> state;
};

namespace {

struct submitted_call {
  std::shared_ptr<ncclCommState> comm;
  cudaStream_t stream;
  call request;
};
thread_local int depth = 0;
thread_local std::vector<submitted_call> pending;

/// Adds a rank's call, and performs it if the call is the last. Called with the mutex held.
void add_call(ncclCommState& comm, const std::tuple<int, int, std::uint64_t>& key, const call& request) {
  hub& comm_hub = *comm.comm_hub;
  auto& entry = comm_hub.rendezvous_table[key];
  entry.calls[comm.rank] = request;
  const bool is_message = request.between_two();
  if (static_cast<int>(entry.calls.size()) < (is_message ? 2 : comm_hub.size)) return;
  if (is_message) {
    const call& sent = entry.calls.at(std::get<0>(key));
    const call& received = entry.calls.at(std::get<1>(key));
    if (sent.count != received.count || sent.type != received.type)
      comm_hub.problem = "a message of another size or type";
    const std::size_t bytes = std::min(sent.count, received.count) * size_of(sent.type);
    if (bytes > 0) std::memmove(received.out, sent.in, bytes);
  } else {
    std::vector<call> calls;
    for (const auto& [rank, rank_call] : entry.calls) calls.push_back(rank_call);
    for (const auto& rank_call : calls) {
      if (!rank_call.matches(calls[0])) comm_hub.problem = "the ranks' calls differ";
    }
    if (comm_hub.problem.empty()) perform(calls);
  }
  entry.done = true;
  comm_hub.changed.notify_all();
}

/// Runs on the stream: performs all calls in a group, which wait together for their peers.
void perform_on_stream(const std::shared_ptr<ncclCommState>& comm, std::uint64_t turn,
                       const std::vector<std::pair<std::tuple<int, int, std::uint64_t>, call>>& calls) {
  hub& comm_hub = *comm->comm_hub;
  std::unique_lock lock(comm_hub.mutex);
  comm_hub.changed.wait(lock, [&] { return comm->ended || comm->turn == turn; });
  if (!comm->ended) {
    // In a message to itself both calls are from the same rank: the pair is completed here.
    std::map<std::tuple<int, int, std::uint64_t>, call> own;
    for (const auto& [key, request] : calls) {
      if (request.between_two() && std::get<0>(key) == std::get<1>(key)) {
        const auto [earlier, is_first] = own.emplace(key, request);
        if (is_first) continue;
        const call& sent = request.operation == kind::send ? request : earlier->second;
        const call& received = request.operation == kind::send ? earlier->second : request;
        if (sent.count > 0) std::memmove(received.out, sent.in, sent.count * size_of(sent.type));
      } else {
        add_call(*comm, key, request);
      }
    }
    for (const auto& [key, request] : calls) {
      if (request.between_two() && std::get<0>(key) == std::get<1>(key)) continue;
      comm_hub.changed.wait(lock, [&, place = key] { return comm->ended || comm_hub.rendezvous_table[place].done; });
      if (comm->ended) break;
      auto& entry = comm_hub.rendezvous_table[key];
      entry.calls.erase(comm->rank);
      if (entry.calls.empty()) comm_hub.rendezvous_table.erase(key);
    }
  }
  ++comm->turn;
  comm_hub.changed.notify_all();
}

/// Removes a rank and its calls that are not performed yet. Called with the mutex held.
void remove_rank(ncclCommState& comm) {
  comm.ended = true;
  for (auto& [key, entry] : comm.comm_hub->rendezvous_table) {
    if (!entry.done) entry.calls.erase(comm.rank);
  }
  auto& member = comm.comm_hub->members[static_cast<std::size_t>(comm.rank)];
  if (member == &comm) member = nullptr;
  comm.comm_hub->changed.notify_all();
}

void submit(std::vector<submitted_call> calls) {
  while (!calls.empty()) {
    const auto comm = calls.front().comm;
    const auto stream = calls.front().stream;
    std::vector<std::pair<std::tuple<int, int, std::uint64_t>, call>> batch;
    std::uint64_t turn = 0;
    {
      const std::lock_guard lock(comm->comm_hub->mutex);
      std::erase_if(calls, [&](const submitted_call& submitted) {
        if (submitted.comm != comm || submitted.stream != stream) return false;
        std::tuple<int, int> ranks_key{-1, -1};
        if (submitted.request.operation == kind::send) ranks_key = {comm->rank, submitted.request.peer};
        if (submitted.request.operation == kind::receive) ranks_key = {submitted.request.peer, comm->rank};
        // The two sides of a message to itself are counted separately.
        const bool to_itself = submitted.request.between_two() && submitted.request.peer == comm->rank;
        auto& next = comm->next[to_itself ? std::tuple<int, int>{-2, submitted.request.operation == kind::send ? 0 : 1}
                                          : ranks_key];
        batch.emplace_back(std::tuple<int, int, std::uint64_t>{std::get<0>(ranks_key), std::get<1>(ranks_key), next++},
                           submitted.request);
        return true;
      });
      turn = comm->next_turn++;
    }
    nccl_double::put_on(stream, [comm, turn, batch] { perform_on_stream(comm, turn, batch); });
  }
}

ncclResult_t place(ncclComm_t comm, cudaStream_t stream, const call& request) {
  if (request.peer < 0 || request.peer >= comm->state->comm_hub->size) return ncclInvalidArgument;
  pending.push_back({comm->state, stream, request});
  if (depth > 0) return ncclSuccess;
  submit(std::exchange(pending, {}));
  return ncclInProgress;  // as a nonblocking communicator may return
}

ncclResult_t join(const std::shared_ptr<hub>& comm_hub, int rank, ncclComm_t* comm, const ncclConfig_t* config) {
  // a blocking communicator ignores deadlines
  if (config == nullptr || config->blocking != 0) return ncclInvalidArgument;
  auto state = std::make_shared<ncclCommState>();
  state->comm_hub = comm_hub;
  state->rank = rank;
  (void)cudaGetDevice(&state->device);
  {
    const std::lock_guard lock(comm_hub->mutex);
    auto& member = comm_hub->members[static_cast<std::size_t>(rank)];
    if (member != nullptr) return ncclInvalidUsage;
    member = state.get();
    comm_hub->joined += joins ? 1 : 0;
    comm_hub->changed.notify_all();
  }
  communicator_of_this_thread = state;
  *comm = new ncclComm{std::move(state)};
  ++all().communicators;
  return ncclInProgress;
}

ncclResult_t release_communicator(ncclComm_t comm) {
  {
    const std::lock_guard lock(comm->state->comm_hub->mutex);
    all().registrations -= comm->state->registered.size();
    comm->state->registered.clear();
    remove_rank(*comm->state);
  }
  nccl_double::wait_for_device(comm->state->device);  // as in NCCL, however long that takes
  delete comm;
  --all().communicators;
  return ncclSuccess;
}

}  // namespace

namespace nccl_double {

void fail_here(ncclResult_t error) {
  if (const auto comm = communicator_of_this_thread.lock()) {
    const std::lock_guard lock(comm->comm_hub->mutex);
    comm->error = error;
  }
}

void never_join_here() { joins = false; }

void die_here(bool noticed) {
  const auto comm = communicator_of_this_thread.lock();
  if (!comm) return;
  const std::lock_guard lock(comm->comm_hub->mutex);
  remove_rank(*comm);
  for (auto* const peer : comm->comm_hub->members) {
    if (peer != nullptr && noticed) peer->error = ncclRemoteError;
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
  const std::lock_guard lock(state.comm_hub->mutex);
  *error = state.error != ncclSuccess                      ? state.error
           : state.comm_hub->joined < state.comm_hub->size ? ncclInProgress
           : !state.comm_hub->problem.empty()              ? ncclInternalError
                                                           : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto& state = *comm->state;
  std::unique_lock lock(state.comm_hub->mutex);
  state.comm_hub->changed.wait(lock, [&] { return state.ended || state.turn == state.next_turn; });
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return release_communicator(comm); }
ncclResult_t ncclCommAbort(ncclComm_t comm) { return release_communicator(comm); }

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t, void** handle) {
  const std::lock_guard lock(comm->state->comm_hub->mutex);
  if (!comm->state->registered.insert(memory).second) return ncclInvalidUsage;
  ++all().registrations;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  const std::lock_guard lock(comm->state->comm_hub->mutex);
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
  if (pending.size() > 1) ++all().groups;
  const bool had_calls = !pending.empty();
  submit(std::exchange(pending, {}));
  return had_calls ? ncclInProgress : ncclSuccess;
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
