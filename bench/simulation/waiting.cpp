// Waiting in a simulation: no loop may spin while the simulated clock stands still.
//
// muster's transports poll: they test their requests, yield the processor and read the clock. In SimGrid every
// iteration of such a loop would be an event with a guessed duration. The linker therefore replaces a few functions
// (--wrap). The clock is the simulated clock. Yielding the processor waits until a message for this rank arrives. A
// test reports the messages that the wait has seen. Each rank has its own variables here, because SMPI copies all
// global variables.
#include <mpi.h>
#include <simgrid/engine.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

namespace {

struct message {
  MPI_Request* request;
  bool arrived = false;
  MPI_Status status{};
};
std::vector<message> under_way;
std::vector<MPI_Request> waited_for;  // A copy, because MPI_Waitany requires a contiguous array.
std::vector<std::size_t> which;
std::size_t turns = 0;

std::vector<message>::iterator find(const MPI_Request* request) {
  return std::find_if(under_way.begin(), under_way.end(), [&](const message& m) { return m.request == request; });
}

void forget(std::vector<message>::iterator known) {
  *known = under_way.back();
  under_way.pop_back();
}

void watch(MPI_Request* request) {
  const auto known = find(request);
  if (known != under_way.end()) forget(known);
  under_way.push_back({request});
}

// A message that has arrived may be tested after other messages: an algorithm tests one message in each iteration, and
// a body after its head. Therefore the rank may test several times before the next wait.
bool may_ask() {
  const bool unasked = std::any_of(under_way.begin(), under_way.end(), [](const message& m) { return m.arrived; });
  return unasked && turns++ < 2 * under_way.size() + 16;
}

void wait_for_one() {
  if (may_ask()) return;
  turns = 0;
  waited_for.clear();
  which.clear();
  for (std::size_t i = 0; i < under_way.size(); ++i) {
    if (under_way[i].arrived) continue;
    waited_for.push_back(*under_way[i].request);
    which.push_back(i);
  }
  if (waited_for.empty()) return;
  int index = MPI_UNDEFINED;
  MPI_Status status;
  MPI_Waitany(static_cast<int>(waited_for.size()), waited_for.data(), &index, &status);
  if (index == MPI_UNDEFINED) return;
  auto& arrived = under_way[which[static_cast<std::size_t>(index)]];
  arrived.arrived = true;
  arrived.status = status;
  *arrived.request = MPI_REQUEST_NULL;
}

}  // namespace

extern "C" {

int __real_MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                     MPI_Request* request);
int __real_MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request);
int __real_MPI_Test(MPI_Request* request, int* done, MPI_Status* status);

int __wrap_MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                     MPI_Request* request) {
  const int code = __real_MPI_Isend(data, count, type, peer, tag, comm, request);
  if (code == MPI_SUCCESS) watch(request);
  return code;
}

int __wrap_MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* request) {
  const int code = __real_MPI_Irecv(data, count, type, peer, tag, comm, request);
  if (code == MPI_SUCCESS) watch(request);
  return code;
}

int __wrap_MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  const auto known = find(request);
  if (known != under_way.end() && known->arrived) {
    if (status != MPI_STATUS_IGNORE) *status = known->status;
    *done = 1;
    forget(known);
    turns = 0;
    return MPI_SUCCESS;
  }
  if (*request == MPI_REQUEST_NULL) {
    *done = 1;
    return MPI_SUCCESS;
  }
  const int code = __real_MPI_Test(request, done, status);
  if (known != under_way.end() && (code != MPI_SUCCESS || *done != 0)) {
    forget(known);
    *request = MPI_REQUEST_NULL;  // SMPI does not reset the request of a detached send.
  }
  return code;
}

// Control messages report failures, which do not occur here. A rank that fails ends the simulation, which reports it.
int __wrap_MPI_Iprobe(int, int, MPI_Comm, int* there, MPI_Status*) {
  *there = 0;
  return MPI_SUCCESS;
}

int __wrap_sched_yield() {
  wait_for_one();
  return 0;
}

std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {  // A time_point is a single number, in nanoseconds.
  return static_cast<std::int64_t>(simgrid_get_clock() * 1e9);
}
}
