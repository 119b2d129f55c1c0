// What waiting is in a simulation: nothing turns while the clock stands still.
//
// muster's transports poll: they test their requests, give the processor away and look at the clock. Where SimGrid
// simulates the ranks, every turn of that would be an event, and the time it takes a guess. So the linker puts these in
// the place of a few functions (--wrap): the clock is the simulation's; giving the processor away is waiting until one
// of this rank's messages arrives; and a test tells what the wait has seen. Each rank has its own copy of these
// variables, as SMPI gives it of all others.
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
std::vector<MPI_Request> waited_for;  // a copy, for MPI_Waitany wants them in one piece
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

// What has arrived may be asked for after something else: an algorithm looks at a message a turn, and at a body after
// its head. So it gets some turns before the next wait.
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
                     MPI_Request* made);
int __real_MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* made);
int __real_MPI_Test(MPI_Request* request, int* done, MPI_Status* status);

int __wrap_MPI_Isend(const void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                     MPI_Request* made) {
  const int code = __real_MPI_Isend(data, count, type, peer, tag, comm, made);
  if (code == MPI_SUCCESS) watch(made);
  return code;
}

int __wrap_MPI_Irecv(void* data, int count, MPI_Datatype type, int peer, int tag, MPI_Comm comm, MPI_Request* made) {
  const int code = __real_MPI_Irecv(data, count, type, peer, tag, comm, made);
  if (code == MPI_SUCCESS) watch(made);
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
    *request = MPI_REQUEST_NULL;  // which SMPI forgets of a send that it has detached
  }
  return code;
}

// Control messages are about trouble, and here is none; a rank that fails ends the simulation, which says so.
int __wrap_MPI_Iprobe(int, int, MPI_Comm, int* there, MPI_Status*) {
  *there = 0;
  return MPI_SUCCESS;
}

int __wrap_sched_yield() {
  wait_for_one();
  return 0;
}

std::int64_t __wrap__ZNSt6chrono3_V212steady_clock3nowEv() {  // a time_point is one number, in nanoseconds
  return static_cast<std::int64_t>(simgrid_get_clock() * 1e9);
}
}
