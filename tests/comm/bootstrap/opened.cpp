// Opens the store of its job as settings and launcher require, exchanges texts with the other ranks through it, and
// prints the result on one line.
//   --by KIND           fails unless it is a store of that kind: "tcp" or "file"
//   --mpi-before, --mpi-after   also initialises MPI, as a program that uses it beside muster would
//   --twice             opens it a second time; over TCP at a fixed port that would require a barrier between
#include <cstdio>
#include <string>
#include <string_view>

#include <muster/comm/bootstrap/exchange.hpp>
#include <muster/comm/bootstrap/open_store.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/error.hpp>

#ifdef MUSTER_HAS_MPI
#include <mpi.h>
#endif

namespace {

// Exchanges texts between all ranks and returns the kind of the store.
std::string meet(const muster::settings& configuration, const muster::launch_env& launch) {
  const auto store = muster::open_store(configuration, launch);
  const auto until = muster::deadline_after(muster::seconds(configuration.number(muster::setting::timeout)));
  const std::string token = muster::common_token(*store, configuration, until);
  const auto word_of = [&](int rank) { return "rank " + std::to_string(rank) + " with " + token; };
  const auto words = muster::exchange(*store, "words", launch.rank, launch.size, word_of(launch.rank), until);
  for (int rank = 0; rank < launch.size; ++rank) {
    if (words.at(static_cast<std::size_t>(rank)) != word_of(rank)) {
      throw muster::error(muster::error_kind::other, "rank " + std::to_string(rank) + " sent another text");
    }
  }
  return store->where().substr(0, store->where().find(':'));
}

}  // namespace

int main(int argc, char** argv) {
  const muster::settings configuration(argc, argv);
  const muster::launch_env launch = muster::detect_launch();
  std::string expected;
  int rounds = 1;
  bool before = false;
  bool after = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i]);
    if (word == "--by" && i + 1 < argc) expected = argv[++i];
    if (word == "--twice") rounds = 2;
    before = before || word == "--mpi-before";
    after = after || word == "--mpi-after";
  }
  int status = 0;
#ifdef MUSTER_HAS_MPI
  if (before) MPI_Init(&argc, &argv);
#endif
  try {
    for (int round = 0; round < rounds; ++round) {
      const std::string kind = meet(configuration, launch);
      if (!expected.empty() && kind != expected) status = 9;
      if (launch.rank == 0) std::printf("%d ranks met by %s\n", launch.size, kind.c_str());
    }
  } catch (const muster::error& failed) {
    std::fprintf(stderr, "rank %d: %s\n", launch.rank, failed.what());
    status = failed.exit_status();
  }
#ifdef MUSTER_HAS_MPI
  if (after) MPI_Init(&argc, &argv);
  if (before || after) {
    int sum = 0;
    MPI_Allreduce(&launch.rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (sum != launch.size * (launch.size - 1) / 2) status = 9;
    MPI_Finalize();
  }
#endif
  return status;
}
