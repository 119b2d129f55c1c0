// Opens the store of its job as settings and launcher say, meets the others in it, and says what came of it on one line.
// With --before or --after also initialises MPI, as a program that uses it beside muster would.
#include <cstdio>
#include <string>
#include <string_view>

#include <muster/comm/rendezvous/exchange.hpp>
#include <muster/comm/rendezvous/open_store.hpp>
#include <muster/core/error.hpp>

#ifdef MUSTER_HAS_MPI
#include <mpi.h>
#endif

int main(int argc, char** argv) {
  const muster::settings configuration(argc, argv);
  const muster::launch_env launch = muster::detect_launch();
  const std::string_view when = argc > 1 ? argv[1] : "";
  int status = 0;
#ifdef MUSTER_HAS_MPI
  if (when == "--before") MPI_Init(&argc, &argv);
#endif
  try {
    for (int round = 0; round < 2; ++round) {
      auto store = muster::open_store(configuration, launch);
      const auto until = muster::deadline_after(muster::seconds(configuration.positive(muster::setting::timeout)));
      const std::string token = muster::job_token(store, configuration, launch, until);
      const auto words = muster::exchange(store, "words", launch.rank, launch.size,
                                          "rank " + std::to_string(launch.rank) + " with " + token, until);
      for (int rank = 0; rank < launch.size; ++rank) {
        if (words.at(static_cast<std::size_t>(rank)) != "rank " + std::to_string(rank) + " with " + token) status = 9;
      }
      const std::string where = store.where().substr(0, store.where().find(':'));
      if (launch.rank == 0 && round == 1) std::printf("%d ranks met by %s\n", launch.size, where.c_str());
    }
  } catch (const muster::error& failed) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, failed.what());
    status = failed.exit_status();
  }
#ifdef MUSTER_HAS_MPI
  if (when == "--after") MPI_Init(&argc, &argv);
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) {
    int sum = 0;
    MPI_Allreduce(&launch.rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != launch.size * (launch.size - 1) / 2) status = 9;
    MPI_Finalize();
  }
#endif
  return status;
}
