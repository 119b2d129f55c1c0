// muster inside a program that uses MPI itself: over a communicator of that program's, which it leaves as it was.
//
//   $ mpirun -n 3 09_inside_an_mpi_program
//   MPI says 3 ranks; muster, on the first 2 of them, sums to 3 and names the transport mpi
#include <cstdio>

#include <mpi.h>

#include <muster/comm/transports/mpi/adopt.hpp>
#include <muster/muster.hpp>

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  MPI_Comm some = MPI_COMM_NULL;  // perhaps not all ranks train
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &some);
  int status = 0;
  if (some != MPI_COMM_NULL) {
    try {
      muster::context context(muster::adopt_mpi(some));  // a duplicate of it: messages do not mix
      const int sum = muster::allreduce(context.world(), rank + 1, muster::sum);
      if (rank == 0)
        std::printf("MPI says %d ranks; muster, on the first %d of them, sums to %d and names the transport %s\n", size,
                    context.ranks(), sum, context.transport_name().c_str());
    } catch (const muster::error& failed) {  // run_main does this for programs that leave MPI to muster
      std::fprintf(stderr, "rank %d: %s\n", rank, failed.what());
      status = 1;
    }
    MPI_Comm_free(&some);
  }
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);  // the others would wait for this rank in MPI_Finalize
  MPI_Finalize();
  return 0;
}
