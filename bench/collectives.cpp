// Allreduce over transports, algorithms and sizes, with plain MPI_Allreduce beside it in the same run.
//   mpirun -n 2 build/release/bench/collectives [--benchmark_filter=... --benchmark_format=json]
//   build/release/bench/collectives --ranks 4          (threads only)
// Rows are allreduce/<who>/<ranks>/<bytes>: in place, float32, sum; the time is the median over all iterations of the
// slowest rank's. All rows of one size are measured together, interleaved in rounds, so that a noisy neighbour meets
// all of them. bus_GB/s is 2(N-1)/N bytes over the time, as nccl-tests has it; vs_openmpi is MPI_Allreduce's time over
// ours.
#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <thread>

#include <muster/comm/collectives/algo/chooser.hpp>

#include "ranks.hpp"

#ifdef MUSTER_HAS_MPI
#include <mpi.h>
#endif

namespace {

constexpr int rounds = 7;
constexpr const char* library_suffix = "/iterations:1/manual_time";  // of every row, by Google Benchmark
constexpr std::size_t smallest = 4;
constexpr std::size_t largest = std::size_t{64} << 20;

// One way to do an allreduce. `measure` is called by every process and returns the times at rank 0.
struct contender {
  std::string who;
  int ranks;
  std::function<std::vector<double>(std::size_t bytes, int iterations)> measure;
};

int iterations_for(std::size_t bytes) {
  return static_cast<int>(std::clamp<std::size_t>((std::size_t{16} << 20) / bytes, 3, 300));
}

std::string row_name(const contender& c, std::size_t bytes) {
  return "allreduce/" + c.who + "/" + std::to_string(c.ranks) + "/" + std::to_string(bytes);
}

// Sums of zeros: the values stay what they are, however often they are summed.
std::vector<double> time_allreduce(muster::group& world, std::size_t bytes, int iterations, muster::algorithm how) {
  std::vector<float> data(bytes / sizeof(float), 1.0f);
  muster::allreduce(world, data, muster::sum, {.how = how});
  for (const float x : data) {
    if (x != static_cast<float>(world.size())) throw std::runtime_error("a wrong sum; the times mean nothing");
  }
  std::fill(data.begin(), data.end(), 0.0f);
  return bench::slowest_times(world, iterations, [&] { muster::allreduce(world, data, muster::sum, {.how = how}); });
}

std::vector<muster::algorithm> algorithms(bool with_native) {
  std::vector<muster::algorithm> list{muster::algorithm::automatic};
  for (const auto how : muster::algorithms_of(muster::collective::allreduce)) {
    if (how != muster::algorithm::native || with_native) list.push_back(how);
  }
  return list;
}

std::string suffix(muster::algorithm how) {
  return how == muster::algorithm::automatic ? "" : "_" + std::string(to_string(how));
}

// Lets the other processes sleep while rank 0's threads work: they would take their cores.
void wait_asleep(muster::group& world) {
  auto all_there = muster::barrier_async(world, {.timeout = muster::seconds(600)});
  while (!all_there.test()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// mpirun binds each process to a core of its own; the threads of this one need more than that.
void use_all_cores() {
  cpu_set_t all;
  CPU_ZERO(&all);
  for (long core = 0; core < std::min<long>(sysconf(_SC_NPROCESSORS_CONF), CPU_SETSIZE); ++core) CPU_SET(core, &all);
  sched_setaffinity(0, sizeof all, &all);  // of the calling thread; where it is not allowed the numbers are worse
}

std::vector<double> time_threads(int ranks, std::size_t bytes, int iterations, muster::algorithm how) {
  auto hub = std::make_shared<muster::local_hub>(ranks);
  std::vector<double> times;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      use_all_cores();
      muster::group world(
          std::make_unique<muster::any_transport>(std::make_unique<muster::local_transport>(hub, rank)));
      auto mine = time_allreduce(world, bytes, iterations, how);
      if (rank == 0) times = std::move(mine);
    });
  }
  for (auto& thread : threads) thread.join();
  return times;
}

std::vector<contender> contenders(muster::context& context) {
  std::vector<contender> list;
  const int ranks = context.ranks();
  for (const auto how : algorithms(false)) {
    list.push_back({"muster_local" + suffix(how), ranks, [&context, ranks, how](std::size_t bytes, int iterations) {
                      if (context.transport_name() == "local") return time_threads(ranks, bytes, iterations, how);
                      std::vector<double> times;
                      if (context.world().rank() == 0) times = time_threads(ranks, bytes, iterations, how);
                      wait_asleep(context.world());
                      return times;
                    }});
  }
#ifdef MUSTER_HAS_MPI
  if (context.transport_name() != "mpi") return list;
  auto& world = context.world();
  for (const auto how : algorithms(true)) {
    list.push_back({"muster_mpi" + suffix(how), ranks, [&world, how](std::size_t bytes, int iterations) {
                      return time_allreduce(world, bytes, iterations, how);
                    }});
  }
  list.push_back({"muster_mpi_native_checked", ranks, [&world](std::size_t bytes, int iterations) {
                    const auto before = world.settings();
                    auto checked = before;
                    checked.check_full = true;
                    world.set_settings(checked);
                    auto times = time_allreduce(world, bytes, iterations, muster::algorithm::native);
                    world.set_settings(before);
                    return times;
                  }});
  list.push_back({"openmpi", ranks, [&world](std::size_t bytes, int iterations) {
                    std::vector<float> data(bytes / sizeof(float), 0.0f);
                    const auto call = [&] {
                      MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                                    MPI_COMM_WORLD);
                    };
                    call();
                    return bench::slowest_times(world, iterations, call);
                  }});
#endif
  return list;
}

// The medians of all rows of one size that the filter lets through, measured when the first of them is asked for.
class table {
 public:
  explicit table(std::vector<contender> all) : all_(std::move(all)) {
    const std::string filter = benchmark::GetBenchmarkFilter();
    filter_ = filter.empty() || filter == "all" ? ".*" : filter;
  }

  const std::map<std::string, double>& of_size(std::size_t bytes) {
    if (bytes == measured_) return medians_;
    const std::regex wanted(filter_);
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < rounds; ++round) {  // round -1 warms up
      for (const auto& c : all_) {
        if (!std::regex_search(row_name(c, bytes) + library_suffix, wanted)) continue;
        const int iterations = round < 0 ? std::min(10, iterations_for(bytes)) : iterations_for(bytes);
        const auto some = c.measure(bytes, iterations);
        if (round >= 0) times[c.who].insert(times[c.who].end(), some.begin(), some.end());
      }
    }
    medians_.clear();
    for (auto& [who, all] : times) medians_[who] = bench::median(std::move(all));
    measured_ = bytes;
    return medians_;
  }

  [[nodiscard]] const std::vector<contender>& all() const { return all_; }

 private:
  std::vector<contender> all_;
  std::string filter_;
  std::size_t measured_ = 0;
  std::map<std::string, double> medians_;
};

void register_rows(table& results) {
  for (std::size_t bytes = smallest; bytes <= largest; bytes *= 4) {
    for (const auto& c : results.all()) {
      benchmark::RegisterBenchmark(row_name(c, bytes).c_str(),
                                   [&results, &c, bytes](benchmark::State& state) {
                                     const auto& medians = results.of_size(bytes);
                                     const double seconds = medians.at(c.who);
                                     for ([[maybe_unused]] auto once : state) state.SetIterationTime(seconds);
                                     const double n = c.ranks;
                                     state.counters["bus_GB/s"] =
                                         seconds > 0 ? 2 * (n - 1) / n * static_cast<double>(bytes) / seconds * 1e-9
                                                     : 0;
                                     const auto peer = medians.find("openmpi");
                                     if (peer != medians.end() && seconds > 0)
                                       state.counters["vs_openmpi"] = peer->second / seconds;
                                   })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
      throw muster::configuration_error(
          "a flag is not known (it is named above); --help lists Google Benchmark's, and muster's are:\n" +
          muster::settings_help());
    }
    const bool threads = context.transport_name() == "local";
    if (context.ranks() < 2) {
      throw muster::configuration_error(
          "an allreduce of one rank is no benchmark (nobody to talk to); start with mpirun -n 2 or --ranks 2");
    }
    table results(contenders(context));
    register_rows(results);
    bench::run_registered(threads ? 0 : context.world().rank());
  });
}
