// Google Benchmark at every rank of a world at once, and one report: what a core does while its neighbours do the same.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <muster/muster.hpp>

namespace bench {

/// Of each row the time of the slowest rank, rates of all ranks together, and the number of ranks. All ranks have the same
/// rows in the same order. Each run of one is collective.
class gathering_reporter final : public benchmark::BenchmarkReporter {
 public:
  /// `shown` at rank 0, null at the others.
  gathering_reporter(muster::group& ranks, benchmark::BenchmarkReporter* shown) : ranks_(&ranks), shown_(shown) {}

  bool ReportContext(const Context& context) override { return shown_ == nullptr || shown_->ReportContext(context); }

  void ReportRuns(const std::vector<Run>& runs) override {
    auto all = runs;
    std::vector<double> slowest, sums;
    for (const auto& run : all) {
      slowest.push_back(run.real_accumulated_time / static_cast<double>(std::max<std::int64_t>(run.iterations, 1)));
      slowest.push_back(run.cpu_accumulated_time / static_cast<double>(std::max<std::int64_t>(run.iterations, 1)));
      for (const auto& [name, counter] : run.counters) sums.push_back(counter.value);
    }
    muster::allreduce(*ranks_, slowest, muster::max);
    muster::allreduce(*ranks_, sums, muster::sum);
    std::size_t time = 0, sum = 0;
    for (auto& run : all) {
      const auto iterations = static_cast<double>(std::max<std::int64_t>(run.iterations, 1));
      run.real_accumulated_time = slowest[time++] * iterations;
      run.cpu_accumulated_time = slowest[time++] * iterations;
      for (auto& [name, counter] : run.counters) {
        // Of a rate the sum over the ranks; anything else, such as a ratio, is the mean.
        const bool rate = (counter.flags & benchmark::Counter::kIsRate) != 0 || name.ends_with("_per_second");
        counter.value = rate ? sums[sum++] : sums[sum++] / ranks_->size();
      }
      run.counters["ranks"] = ranks_->size();
      // How often all ranks together did it: a speed-up is a ratio of these.
      run.counters["throughput"] = ranks_->size() * iterations / run.real_accumulated_time;
    }
    if (shown_ != nullptr) shown_->ReportRuns(all);
  }

  void Finalize() override {
    if (shown_ != nullptr) shown_->Finalize();
  }

 private:
  muster::group* ranks_;
  benchmark::BenchmarkReporter* shown_;
};

/// The main of a benchmark: takes muster's flags and Google Benchmark's, calls `enrol(context)`, which registers, and runs
/// all at every rank. One rank reports as it always does. Returns the exit status.
template <class Enrol>
int run_everywhere(int argc, char** argv, Enrol enrol) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    if (context.transport_name() == "local") {
      throw muster::configuration_error(
          "ranks that are threads cannot run this (Google Benchmark has one main thread); start with mpirun -n");
    }
    auto& world = context.world();
    auto settings = world.settings();
    settings.timeout = muster::seconds(3600);  // ranks meet after each row, however long it takes
    world.set_settings(settings);
    if (world.rank() != 0) {  // one file, written by one
      char** const end = std::remove_if(argv + 1, argv + argc, [](const char* word) {
        return std::strncmp(word, "--benchmark_out", 15) == 0;
      });
      argc = static_cast<int>(end - argv);
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) {
      throw muster::configuration_error("a flag is not known (it is named above); --help lists Google Benchmark's");
    }
    enrol(context);
    if (world.size() == 1) {
      benchmark::RunSpecifiedBenchmarks();
      return;
    }
    const std::unique_ptr<benchmark::BenchmarkReporter> shown(
        world.rank() == 0 ? benchmark::CreateDefaultDisplayReporter() : nullptr);
    gathering_reporter gather(world, shown.get());
    benchmark::RunSpecifiedBenchmarks(&gather);
  });
}

}  // namespace bench
