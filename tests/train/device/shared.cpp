// Two processes that share a device and train together. A group over sockets or shared memory sums their gradients. A
// process is killed during a step. The processes run this program with a hidden test case.
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/hash.hpp>
#include <muster/train/training.hpp>

#include "catch.hpp"
#include "model.hpp"
#include "quadratic.hpp"
#include "train/trained.hpp"

namespace {

constexpr std::uint64_t steps = 20;
constexpr std::uint64_t dies_in = 7;

std::string word(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Runs a rank as its environment specifies.
void train(muster::context& context) {
  muster::use_device(0);
  const muster::device_stream stream;
  const auto data = test::numbers(60);
  muster::loader loader(data | muster::shuffle(3) | muster::batch(7));
  test::quadratic model(stream);
  muster::device_arena arena(test::quadratic::shapes(), stream);
  auto optimizer = muster::make_optimizer(arena, "momentum:0.9");
  auto options = muster::training::sync_of_job(context);
  options.bucket = 16u << 10;
  options.first_bucket = 2048;
  muster::training training(context, options, muster::gradients_on(arena), optimizer, loader);
  const bool dies = word("MUSTER_TEST_DIES") == "1";
  int groups = 0;
  const auto count_group = [&](muster::group&, bool) { ++groups; };
  const auto compare = [&](muster::training_step& step) {
    muster::digest all;
    for (const float value : test::on_host(arena)) all.add(std::bit_cast<std::uint32_t>(value));
    const std::uint64_t mine = all.value();
    std::vector<std::uint64_t> digests(static_cast<std::size_t>(step.group().size()));
    muster::allgather(step.group(), std::span(&mine, 1), digests);
    CHECK(digests == std::vector(digests.size(), mine));
  };
  const auto is_the_victim = [&](const muster::training_step& step) {  // among the ranks that were started
    return dies && step.number() + 1 == dies_in && step.group().rank() == 1 &&
           std::to_string(step.group().size()) == word("WORLD_SIZE");
  };
  try {
    training.run({.steps = steps, .at_end = compare, .each_group = count_group, .log = nullptr}, [&](auto& step) {
      step.backward(step.next(loader), [&](const auto& part, auto& pass) {
        for (std::size_t tensor = test::quadratic::shapes().size(); tensor-- > 0;) {
          model.backward(arena, part, pass, tensor);
          if (tensor == 2 && is_the_victim(step)) std::raise(SIGKILL);
        }
      });
      step.update(optimizer, 0.05);
    });
    REQUIRE((!dies || (context.elastic() && groups > 1)));
  } catch (const muster::peer_failure& failure) {
    std::printf("rank %d: %s\n", context.world().rank(), failure.what());
    REQUIRE(dies);
    CHECK(failure.ranks() == std::vector<int>{1});
    CHECK(training.state().steps() == dies_in - 1);
    muster::fill(arena.gradients(), 2.0f, stream);  // the device computes
    muster::scale(arena.gradients(), 1.5f, stream);
    CHECK(devices::on_host(arena.gradients(), stream) == std::vector<float>(arena.gradients().size(), 3.0f));
  }
  const auto parameters = test::on_host(arena);
  std::ofstream(word("MUSTER_TEST_RESULT"), std::ios::binary)
      .write(reinterpret_cast<const char*>(parameters.data()),
             static_cast<std::streamsize>(parameters.size() * sizeof(float)));
}

std::vector<float> read(const std::filesystem::path& file) {
  std::vector<float> values(std::filesystem::exists(file) ? std::filesystem::file_size(file) / sizeof(float) : 0);
  std::ifstream(file, std::ios::binary)
      .read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

/// A job with a number of processes in a separate folder, and the status of each process from waitpid.
class job {
 public:
  job(int ranks, const std::string& transport, bool dies) {
    std::string name = (std::filesystem::temp_directory_path() / "muster-shared-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    for (int rank = 0; rank < ranks; ++rank) start(rank, ranks, transport, dies);
    const auto until = muster::deadline_after(muster::seconds(120));
    for (std::size_t running = processes_.size(); running > 0 && muster::clock::now() < until;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      running = 0;
      for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
        if (!ended_[rank]) ended_[rank] = waitpid(processes_[rank], &statuses_[rank], WNOHANG) != 0;
        running += ended_[rank] ? 0 : 1;
      }
    }
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  ~job() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      if (ended_[rank]) continue;
      kill(processes_[rank], SIGKILL);
      waitpid(processes_[rank], nullptr, 0);
    }
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  [[nodiscard]] bool succeeded(std::size_t rank) const {
    return ended_[rank] && WIFEXITED(statuses_[rank]) && WEXITSTATUS(statuses_[rank]) == 0;
  }
  [[nodiscard]] bool was_killed(std::size_t rank) const {
    return ended_[rank] && WIFSIGNALED(statuses_[rank]) && WTERMSIG(statuses_[rank]) == SIGKILL;
  }
  [[nodiscard]] std::vector<float> parameters(int rank) const { return read(result(rank)); }

 private:
  [[nodiscard]] std::filesystem::path result(int rank) const { return folder_ / ("rank" + std::to_string(rank)); }
  void start(int rank, int ranks, const std::string& transport, bool dies) {
    const auto number = std::to_string(rank), all = std::to_string(ranks);
    const std::map<std::string, std::string> environment = {
        {"RANK", number},
        {"WORLD_SIZE", all},
        {"LOCAL_RANK", number},
        {"LOCAL_WORLD_SIZE", all},
        {"MUSTER_JOB", "shared-" + std::to_string(getpid()) + "-" + folder_.filename().string()},
        {"MUSTER_TRANSPORT", transport},
        {"MUSTER_TOKEN", "of the test"},
        {"MUSTER_RENDEZVOUS", "file:" + folder_.string()},
        {"MUSTER_TEST_RESULT", result(rank).string()},
        {"MUSTER_TEST_DIES", dies ? "1" : "0"}};
    const auto child = fork();
    if (child == 0) {
      for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
      execl("/proc/self/exe", "rank", "[.shares-a-device]", static_cast<char*>(nullptr));
      _exit(127);
    }
    processes_.push_back(child);
    ended_.push_back(false);
    statuses_.push_back(0);
  }

  std::filesystem::path folder_;
  std::vector<pid_t> processes_;
  std::vector<bool> ended_;
  std::vector<int> statuses_;
};

std::vector<std::string> transports() {
#ifdef MUSTER_HAS_TCP
  return {"tcp", "shm"};
#else
  return {"shm"};
#endif
}

}  // namespace

TEST_CASE("a rank of a job of processes that share a device", "[.shares-a-device]") {
  MUSTER_NEEDS_DEVICE();
  test::command_line line({"app"});
  muster::context context(line.argc, line.argv());
  train(context);
}

TEST_CASE("two processes that share a device train to the same bits, and those of one within rounding") {
  MUSTER_NEEDS_DEVICE();
  const job alone(1, "shm", false);
  REQUIRE(alone.succeeded(0));
  const auto expected = alone.parameters(0);
  REQUIRE(expected.size() > test::quadratic::largest);
  for (const auto& transport : transports()) {
    CAPTURE(transport);
    const job both(2, transport, false);
    REQUIRE((both.succeeded(0) && both.succeeded(1)));
    const auto got = both.parameters(0);
    CHECK(both.parameters(1) == got);
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (std::abs(got[i] - expected[i]) > 1e-4f * std::max(1.0f, std::abs(expected[i])))
        FAIL("parameter " << i << " is " << got[i] << " and not " << expected[i]);
    }
  }
}

TEST_CASE("of two processes that share a device one is killed amid a step, and the other goes on using the device") {
  MUSTER_NEEDS_DEVICE();
  for (const auto& transport : transports()) {
    CAPTURE(transport);
    const job both(2, transport, true);
    CHECK(both.was_killed(1));
    CHECK(both.succeeded(0));
  }
}
