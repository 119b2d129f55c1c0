// A program that uses MPI itself and passes muster a communicator: MPI and the communicator are left as they were
// found.
#include <mpi.h>
#include <muster/muster.hpp>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <muster/comm/transports/mpi/adopt.hpp>

namespace {

int failures = 0;

void expect(bool condition, const char* expectation) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", expectation);
  ++failures;
}

int argc_of_test = 1;  // a number that the compiler does not know

bool refuses(MPI_Comm communicator) {
  try {
    (void)muster::adopt_mpi(communicator);
  } catch (const muster::configuration_error&) {
    return true;
  }
  return false;
}

// Returns the result of run_main with these flags, over that communicator; `body` is called once.
template <class Body>
int run_over(MPI_Comm communicator, const std::vector<std::string>& flags, Body body) {
  std::vector<std::string> words = {"app"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  return muster::run_main(argc, pointers.data(), body,
                          {.connect = [communicator] { return muster::adopt_mpi(communicator); }});
}

void test_run_main(MPI_Comm communicator, int size) {
  int ran = 0;
  const auto counts = [&](muster::context& context) { ran += context.world().size() == size ? 1 : 0; };
  expect(run_over(communicator, {}, counts) == 0 && ran == 1, "run_main over a communicator");
  const auto fails = [](muster::context& context) {
    if (context.world().rank() == 1) throw muster::data_error({"part.txt"}, "cannot be read");
    muster::barrier(context.world());
  };
  expect(run_over(communicator, {}, fails) == 3, "one status at every rank");
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--transport", "shm"},
                                                {"--ranks", "2"},
                                                {"--elastic", "on"},
                                                {"--rendezvous", "file:/tmp"}})
    expect(run_over(communicator, flags, counts) == 2 && ran == 1, (flags[0] + " is refused").c_str());
  expect(run_over(communicator, {"--timeout", "never"}, counts) == 2 && ran == 1, "a bad flag is refused");
  int rank = 0;
  MPI_Comm_rank(communicator, &rank);
  const auto odd = rank == 1 ? std::vector<std::string>{"--transport", "tcp"} : std::vector<std::string>{};
  expect(run_over(communicator, odd, [](muster::context& context) { muster::barrier(context.world()); }) == 2,
         "a flag at one rank ends all ranks");
  expect(run_over(communicator, {"--transport", "mpi"}, counts) == 0 && ran == 2,
         "the flag may name the actual transport");

  // A rank that caught its error and left: over MPI the other ranks do not detect this.
  std::string text;
  try {
    muster::context context(muster::adopt_mpi(communicator));
    std::vector<float> in(4), out(4);
    try {
      if (rank == 1) muster::reduce(context.world(), in, out, muster::sum, -1 - std::abs(argc_of_test));
    } catch (const muster::configuration_error&) {
    }
    if (rank != 1) muster::allreduce(context.world(), in, muster::sum, {.timeout = muster::seconds(20)});
  } catch (const muster::peer_failure& failure) {
    text = failure.what();
  }
  expect(rank == 1 || text.find("the root cannot be rank -") != std::string::npos,
         "the ranks that wait get the reason");
}

}  // namespace

int main(int argc, char** argv) {
  argc_of_test = argc;
  expect(refuses(MPI_COMM_NULL), "before MPI_Init nothing can be adopted");
  MPI_Init(&argc, &argv);
  int world_rank = 0;
  int world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  MPI_Comm backwards = MPI_COMM_NULL;  // the user's order of ranks differs from the world's
  MPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &backwards);
  expect(refuses(MPI_COMM_NULL), "no communicator");

  for (int round = 0; round < 2; ++round) {  // two contexts, one after the other
    muster::context context(muster::adopt_mpi(backwards));
    auto& world = context.world();
    expect(world.size() == world_size && world.rank() == world_size - 1 - world_rank, "ranks are the communicator's");
    // A message of the user is delivered to the user, whatever muster sends meanwhile.
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

  test_run_main(backwards, world_size);

  int finalized = 1;
  MPI_Finalized(&finalized);
  expect(finalized == 0, "muster did not initialise MPI and does not finalize it");
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
