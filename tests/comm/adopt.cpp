// A program that uses MPI itself and lends muster a communicator: both are left as they were found.
#include <mpi.h>
#include <muster/muster.hpp>

#include <cstdio>

#include <muster/comm/transports/mpi/adopt.hpp>

namespace {

int failures = 0;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  ++failures;
}

bool refuses(MPI_Comm communicator) {
  try {
    (void)muster::adopt_mpi(communicator);
  } catch (const muster::configuration_error&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  expect(refuses(MPI_COMM_NULL), "before MPI_Init nothing can be adopted");
  MPI_Init(&argc, &argv);
  int world_rank = 0;
  int world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm backwards = MPI_COMM_NULL;  // the user's order of ranks is not that of the world
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
  expect(refuses(MPI_COMM_NULL), "no communicator");

  for (int round = 0; round < 2; ++round) {  // one context after the other
    muster::context context(muster::adopt_mpi(backwards));
    auto& world = context.world();
    expect(world.size() == world_size && world.rank() == world_size - 1 - world_rank, "ranks are the communicator's");
    // A message of the user's stays the user's, whatever muster sends meanwhile.
    int sent = 40 + world_rank;
    int got = 0;
    MPI_Request pending[2];
    const int next = (world.rank() + 1) % world_size;
    const int previous = (world.rank() + world_size - 1) % world_size;
    MPI_Irecv(&got, 1, MPI_INT, previous, 0, backwards, &pending[0]);
    expect(muster::allreduce(world, 1, muster::sum) == world_size, "allreduce");
    auto pair = world.split(world.rank() / 2);
    expect(muster::allreduce(pair, 1, muster::sum) == pair.size(), "split");
    MPI_Isend(&sent, 1, MPI_INT, next, 0, backwards, &pending[1]);
    MPI_Waitall(2, pending, MPI_STATUSES_IGNORE);
    expect(got == 40 + world_size - 1 - previous, "the user's message");
  }

  int finalized = 1;
  MPI_Finalized(&finalized);
  expect(finalized == 0, "muster did not begin MPI and does not end it");
  int sum = 0;
  MPI_Allreduce(&world_rank, &sum, 1, MPI_INT, MPI_SUM, backwards);
  expect(sum == world_size * (world_size - 1) / 2, "the communicator works as before");
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(backwards, &handler);
  expect(handler == MPI_ERRORS_ARE_FATAL, "its error handler is the user's");
  MPI_Comm_free(&backwards);
  MPI_Finalize();
  expect(refuses(MPI_COMM_WORLD), "after MPI_Finalize nothing can be adopted");
  return failures == 0 ? 0 : 1;
}
