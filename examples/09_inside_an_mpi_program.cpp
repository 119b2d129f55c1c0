// muster inside a program that uses MPI itself. muster uses a communicator of the program and does not change it.
//
//   $ mpirun -n 3 09_inside_an_mpi_program
//   MPI has 3 ranks; muster, on the first 2 of them, sums to 3 and names the transport mpi
#include <cstdio>
#include <utility>

#include <mpi.h>

#include <muster/comm/transports/mpi/adopt.hpp>
#include <muster/muster.hpp>

void run(int argc, char** argv) {
  muster::settings flags(argc, argv);  // removes muster's flags from the command line
  if (flags.requested() != muster::settings::request::none) {
    std::fputs(muster::output_for(flags.requested(), "usage: mpirun -n N 09_inside_an_mpi_program\n").c_str(), stdout);
    return;
  }
  if (argc > 1) throw muster::unknown_argument(argv[1]);
  flags.check_numbers();  // before MPI_Init: errors need not be sent to other ranks yet

  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  MPI_Comm some = MPI_COMM_NULL;  // not all ranks need to train
  MPI_Comm_split(MPI_COMM_WORLD, rank < 2 ? 0 : MPI_UNDEFINED, rank, &some);
  if (some != MPI_COMM_NULL) {
    {
      // duplicates the communicator, so that messages do not mix
      muster::context context(muster::adopt_mpi(some), std::move(flags));
      const int sum = muster::allreduce(context.world(), rank + 1, muster::sum);
      if (rank == 0)
        std::printf("MPI has %d ranks; muster, on the first %d of them, sums to %d and names the transport %s\n", size,
                    context.ranks(), sum, context.transport_name().c_str());
    }  // destroys the context before its communicator and before MPI_Finalize
    MPI_Comm_free(&some);
  }
  MPI_Finalize();
}

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (...) {  // run_main does this for programs that leave MPI to muster
    const int status = muster::exit_status_of(std::current_exception());
    std::fprintf(stderr, "09_inside_an_mpi_program: error: %s\n", muster::describe(std::current_exception()).c_str());
    int has_begun = 0;
    MPI_Initialized(&has_begun);
    // otherwise the other ranks would wait for this rank in MPI_Finalize
    if (has_begun != 0) MPI_Abort(MPI_COMM_WORLD, status);
    return status;
  }
}
