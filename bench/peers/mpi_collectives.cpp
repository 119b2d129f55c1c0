// The collectives in one MPI, without muster, under the same protocol as bench/collectives:
//   mpirun.openmpi -n 2 build/release/bench/peers/mpi_collectives.openmpi [BYTES...]
// Prints lines of JSON: the median, over one round's iterations, of the slowest rank's time. It is built once for each
// installed MPI. With --turns=FOLDER the program takes turns (bench/turns.hpp).
#include <exception>

#include "../plain_mpi.hpp"
#include "../turns.hpp"

namespace {

void take_turns(bench::turns turns, int rank) {
  std::vector<float> data;
  while (const auto turn = turns.next()) {
    const auto count = turn->bytes / sizeof(float);
    if (data.size() != count) data = std::vector<float>(count);
    (void)bench::time_mpi(turn->operation, data, bench::warm_up_for(turn->operation, turn->bytes));
    const auto times = bench::time_mpi(turn->operation, data, bench::repeats_for(turn->operation, turn->bytes));
    if (rank == 0) bench::print_result(*turn, times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string names[] = {"mpi"};
  if (rank == 0) bench::print_ready(names, bench::mpi_library());
  try {
    const auto folder = bench::folder_of_turns(argc, argv);
    take_turns(folder ? bench::turns(*folder, rank) : bench::turns(argc, argv, bench::collectives), rank);
  } catch (const std::exception& failure) {
    if (rank == 0) std::fprintf(stderr, "%s: error: %s\n", argv[0], failure.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
