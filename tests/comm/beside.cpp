// muster and a program's own calls of MPI beside each other, at each thread level: neither changes the other's
// communicator, handlers of errors or hints, and neither waits for ever because the other waits.
//
//   usage: mpirun -n N test_beside single|funneled|serialized|multiple
#include <mpi.h>
#include <muster/collectives.hpp>

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <muster/comm/transports/mpi/adopt.hpp>

namespace {

int failures = 0;
int errors_of_program = 0;       // number of calls of the program's handler
int calls_of_other_threads = 0;  // calls of MPI that its thread level does not allow
int freed = 0;                   // communicators that muster has freed
bool has_hint = false;           // one of them had the hint of the program's communicator

constexpr const char* hint = "mpi_assert_allow_overtaking";

void expect(bool condition, const char* expectation) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", expectation);
  ++failures;
}

void on_error(MPI_Comm*, int*, ...) { ++errors_of_program; }

// Notes a call from a thread that MPI does not allow.
void note_thread() {
  int level = 0, is_main = 0;
  PMPI_Query_thread(&level);
  PMPI_Is_thread_main(&is_main);
  if (level < MPI_THREAD_SERIALIZED && is_main == 0) ++calls_of_other_threads;
}

bool carries_hint(MPI_Comm communicator) {
  MPI_Info info = MPI_INFO_NULL;
  PMPI_Comm_get_info(communicator, &info);
  char value[8] = {};
  int found = 0;
  PMPI_Info_get(info, hint, sizeof value - 1, value, &found);
  PMPI_Info_free(&info);
  return found != 0 && std::string_view(value) == "true";
}

}  // namespace

// MPI's profiling interface: muster calls these functions.
extern "C" int MPI_Comm_free(MPI_Comm* communicator) {
  ++freed;
  has_hint = has_hint || carries_hint(*communicator);
  return PMPI_Comm_free(communicator);
}
extern "C" int MPI_Iprobe(int source, int tag, MPI_Comm communicator, int* found, MPI_Status* status) {
  note_thread();
  return PMPI_Iprobe(source, tag, communicator, found, status);
}
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm communicator,
                         MPI_Request* request) {
  note_thread();
  return PMPI_Isend(data, count, type, to, tag, communicator, request);
}

namespace {

struct program {
  MPI_Comm ranks = MPI_COMM_NULL;  // its own communicator
  int rank = 0, size = 0, level = 0;
};

constexpr muster::collective_options patient{.timeout = muster::seconds(30)};

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const muster::error& e) {
    return e.what();
  }
  return {};
}

// Errors of muster's calls, and of the program's, reach their own handlers.
void test_handlers(const program& self) {
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL, found = MPI_ERRHANDLER_NULL;
  MPI_Comm_create_errhandler(&on_error, &handler);
  MPI_Comm_set_errhandler(self.ranks, handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, hint, "true");
  MPI_Comm hinted = MPI_COMM_NULL;
  MPI_Comm_dup_with_info(self.ranks, info, &hinted);
  MPI_Info_free(&info);
  expect(carries_hint(hinted), "MPI knows the hint");
  {
    muster::context context(muster::adopt_mpi(hinted));
    expect(muster::allreduce(context.world(), 1, muster::sum) == self.size, "allreduce");
    auto half = context.world().split(self.rank % 2);
    muster::barrier(half);
  }
  PMPI_Comm_free(&hinted);
  expect(freed >= 1 && !has_hint, "muster's messages keep their order, whatever the program asserts of its own");
  {
    muster::context context(muster::adopt_mpi(self.ranks));
    std::vector<float> data(self.rank == 0 ? 100 : 9000);  // MPI truncates the messages of such a collective
    const auto text =
        error_of([&] { muster::allreduce(context.world(), data, muster::sum, {.timeout = muster::seconds(1)}); });
    expect(!text.empty(), "sizes that differ are an error of muster");
  }
  expect(errors_of_program == 0, "an error of muster does not reach the program's handler");
  MPI_Comm_get_errhandler(self.ranks, &found);
  expect(found == handler, "the program's handler remains");
  MPI_Errhandler_free(&found);
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &found);
  expect(found == MPI_ERRORS_RETURN, "the handler of the world remains");
  int number = 0;
  expect(MPI_Send(&number, 1, MPI_INT, self.size + 7, 0, self.ranks) != MPI_SUCCESS && errors_of_program == 1,
         "an error of the program reaches its handler");
  MPI_Errhandler_free(&handler);
}

void test_communicators(const program& self) {
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL, copy = MPI_COMM_NULL;
  MPI_Comm_split(self.ranks, self.rank % 2, 0, &half);
  MPI_Intercomm_create(half, 0, self.ranks, self.rank % 2 == 0 ? 1 : 0, 5, &between);
  expect(error_of([&] { (void)muster::adopt_mpi(between); }).find("two groups") != std::string::npos,
         "a communicator between two groups is refused");
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
  MPI_Comm_dup(self.ranks, &copy);
  {
    muster::context first(muster::adopt_mpi(self.ranks));
    muster::group second(muster::adopt_mpi(copy), {});
    for (int round = 0; round < 20; ++round) {
      std::vector<int> more(5000, round);
      auto outstanding = muster::allreduce_async(first.world(), more, muster::sum, patient);
      expect(muster::allreduce(second, round, muster::sum, patient) == round * self.size, "the duplicate's sum");
      int sum = 0;
      MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, copy);
      expect(sum == round * self.size, "the program's sum");
      outstanding.wait();
      expect(more.back() == round * self.size, "the first communicator's sum");
    }
  }
  MPI_Comm_free(&copy);
}

// A thread other than the main one: refused below the serialized level, and at the same time as MPI at the multiple
// one.
void test_threads(const program& self) {
  muster::context context(muster::adopt_mpi(self.ranks));
  std::string refusal;
  int sum = 0;
  std::thread other([&] {
    refusal = error_of([&] {
      for (int round = 0; round < 50; ++round) sum = muster::allreduce(context.world(), round, muster::sum, patient);
    });
  });
  if (self.level == MPI_THREAD_MULTIPLE) {
    const int next = (self.rank + 1) % self.size, previous = (self.rank + self.size - 1) % self.size;
    for (int round = 0; round < 50; ++round) {
      int received = -1;
      MPI_Sendrecv(&round, 1, MPI_INT, next, 3, &received, 1, MPI_INT, previous, 3, self.ranks, MPI_STATUS_IGNORE);
      expect(received == round, "a message of the program beside a collective of another thread");
    }
  }
  other.join();
  if (self.level < MPI_THREAD_SERIALIZED) {
    expect(refusal.find("not its main one") != std::string::npos, "another thread is refused");
    expect(calls_of_other_threads == 0, "another thread does not call MPI");
  } else {
    expect(refusal.empty() && sum == 49 * self.size, "another thread may call");
  }
}

// The program's operations progress while muster waits.
void test_program_progresses(const program& self) {
  muster::context context(muster::adopt_mpi(self.ranks));
  std::vector<char> large(std::size_t{8} << 20);  // needs an answer of the receiver
  MPI_Request pending = MPI_REQUEST_NULL;
  const int bytes = static_cast<int>(large.size());
  if (self.rank == 0) MPI_Isend(large.data(), bytes, MPI_CHAR, 1, 1, self.ranks, &pending);
  if (self.rank == 1) MPI_Recv(large.data(), bytes, MPI_CHAR, 0, 1, self.ranks, MPI_STATUS_IGNORE);
  muster::barrier(context.world(), patient);
  MPI_Wait(&pending, MPI_STATUS_IGNORE);

  MPI_Ibarrier(self.ranks, &pending);
  std::vector<int> token(1, 7);
  if (self.rank == 0) muster::receive(context.world(), token, 1, {.timeout = muster::seconds(30)});
  MPI_Wait(&pending, MPI_STATUS_IGNORE);
  if (self.rank == 1) muster::send(context.world(), token, 0, {.timeout = muster::seconds(30)});
  expect(token[0] == 7, "a message after the program's barrier");
}

// A work is outstanding at rank 0 while the program waits there for a message, which rank 1 sends after its own work.
// Returns the error of this rank.
std::string wait_in_program(const program& self, std::size_t count, const muster::collective_options& options) {
  muster::context context(muster::adopt_mpi(self.ranks));
  std::vector<float> data(count, 1.0f);
  int token = 0;  // rank 1 begins when the work of rank 0 is outstanding
  if (self.rank == 1) MPI_Recv(&token, 1, MPI_INT, 0, 4, self.ranks, MPI_STATUS_IGNORE);
  auto outstanding = muster::allreduce_async(context.world(), data, muster::sum, options);
  if (self.rank == 0) MPI_Send(&token, 1, MPI_INT, 1, 4, self.ranks);
  if (self.rank == 0) MPI_Recv(&token, 1, MPI_INT, 1, 2, self.ranks, MPI_STATUS_IGNORE);
  const auto text = error_of([&] { outstanding.wait(); });
  if (self.rank == 1) MPI_Send(&token, 1, MPI_INT, 0, 2, self.ranks);
  expect(!text.empty() || data.back() == static_cast<float>(self.size), "the sum");
  MPI_Barrier(self.ranks);
  return text;
}

void test_work_progresses(const program& self) {
  using muster::algorithm;
  const auto native = wait_in_program(self, 1000, {.algorithm = algorithm::native, .timeout = muster::seconds(30)});
  expect(native.empty(), "a native collective progresses in the program's calls of MPI");
  if (self.level == MPI_THREAD_MULTIPLE) {
    for (const std::size_t count : {std::size_t{1000}, std::size_t{300'000}}) {
      for (const auto chosen : {algorithm::automatic, algorithm::ring, algorithm::native})
        expect(wait_in_program(self, count, {.algorithm = chosen, .timeout = muster::seconds(30)}).empty(),
               "a work progresses on the progress thread");
    }
    return;
  }
  // Without threads nothing can advance the work: the deadline ends the wait, with the rank that does not call.
  const auto text = wait_in_program(self, 1000, {.algorithm = algorithm::ring, .timeout = muster::seconds(1)});
  // Rank 0 may have received all messages before.
  if (self.rank == 1)
    expect(text.find("rank 0") != std::string::npos, ("the deadline names the rank: " + text).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view names[] = {"single", "funneled", "serialized", "multiple"};
  const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED, MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
  program self;
  for (int i = 0; i < 4; ++i) {
    if (argc == 2 && names[i] == argv[1]) MPI_Init_thread(&argc, &argv, levels[i], &self.level);
  }
  int rank_in_world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_in_world);
  MPI_Comm_split(MPI_COMM_WORLD, 0, -rank_in_world, &self.ranks);
  MPI_Comm_rank(self.ranks, &self.rank);
  MPI_Comm_size(self.ranks, &self.size);
  if (names[self.level] != argv[1]) {
    std::printf("SKIPPED: MPI has the thread level %s\n", names[self.level].data());
    MPI_Finalize();
    return 0;
  }
  for (const auto& test : {std::function<void(const program&)>(test_communicators),
                           {test_handlers},
                           {test_threads},
                           {test_program_progresses},
                           {test_work_progresses}}) {
    test(self);
    MPI_Barrier(self.ranks);
  }
  if (failures == 0 && self.rank == 0) std::printf("%d ranks, %s: all holds\n", self.size, argv[1]);
  PMPI_Comm_free(&self.ranks);
  MPI_Finalize();
  return failures == 0 ? 0 : 1;
}
