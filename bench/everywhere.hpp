// Google Benchmark at every rank of a world at once, with one report: the speed of a core while its neighbours do the
// same work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include <muster/muster.hpp>

namespace bench {

/// A reporter of each row's time at the slowest rank, rates over all ranks together, and the number of ranks. All ranks
/// have the same rows in the same order; the report of a row is collective.
class gathering_reporter final : public benchmark::BenchmarkReporter {
 public:
  /// Constructs the reporter. `shown` are the reporters that receive the results; only rank 0 uses its reporters.
  gathering_reporter(muster::group& ranks, std::vector<benchmark::BenchmarkReporter*> shown)
      : ranks_(&ranks), shown_(std::move(shown)) {
    if (ranks.rank() == 0) return;
    shown_.clear();
    SetOutputStream(&nowhere_);  // Lists of names and similar output.
    SetErrorStream(&nowhere_);
  }

  bool ReportContext(const Context& context) override {
    return std::ranges::all_of(shown_, [&](auto* each) { return each->ReportContext(context); });
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    auto all = runs;
    for (auto& run : all) {
      int broken = run.error_occurred ? 1 : 0;
      muster::allreduce(*ranks_, std::span(&broken, 1), muster::max);
      if (broken == 0) {
        gather(run);
      } else if (!run.error_occurred) {
        run.error_occurred = true;
        run.error_message = "it failed at another rank";
      }
    }
    for (auto* each : shown_) each->ReportRuns(all);
  }

  void Finalize() override {
    for (auto* each : shown_) each->Finalize();
  }

 private:
  void gather(Run& run) {
    const auto iterations = static_cast<double>(std::max<std::int64_t>(run.iterations, 1));
    double times[] = {run.real_accumulated_time / iterations, run.cpu_accumulated_time / iterations};
    muster::allreduce(*ranks_, std::span(times), muster::max);
    run.real_accumulated_time = times[0] * iterations;
    run.cpu_accumulated_time = times[1] * iterations;

    std::vector<double> sums;
    for (const auto& [name, counter] : run.counters) sums.push_back(counter.value);
    muster::allreduce(*ranks_, std::span(sums), muster::sum);
    // Spreads of repetitions, and ratios, are averaged and not added.
    const bool is_spread = run.aggregate_unit == benchmark::kPercentage || run.aggregate_name == "stddev";
    auto sum = sums.begin();
    for (auto& [name, counter] : run.counters) {
      const bool adds_up = (counter.flags & benchmark::Counter::kIsRate) != 0 && !is_spread;
      counter.value = *sum++ / (adds_up ? 1 : ranks_->size());
    }
    run.counters["ranks"] = ranks_->size();
    // Calls per second over all ranks; a speed-up is a ratio between such rates.
    if (!is_spread) run.counters["throughput"] = ranks_->size() / times[0];
  }

  muster::group* ranks_;
  std::vector<benchmark::BenchmarkReporter*> shown_;
  std::ostream nowhere_{nullptr};
};

/// Removes the argument that starts with `prefix` from the command line. Returns the rest of the argument, or an empty
/// text.
inline std::string take_flag(int& argc, char** argv, std::string_view prefix) {
  std::string found;
  char** const end = std::remove_if(argv + 1, argv + argc, [&](const char* word) {
    if (!std::string_view(word).starts_with(prefix)) return false;
    found = word + prefix.size();
    return true;
  });
  argc = static_cast<int>(end - argv);
  return found;
}

/// The main function of a benchmark: parses muster's flags and Google Benchmark's flags, calls `enrol(context)`, which
/// registers the benchmarks, and runs all benchmarks at every rank. Rank 0 reports to `shown` (null: Google Benchmark's
/// default), and to the file of --benchmark_out as JSON. Returns the exit status.
template <class Enrol>
int run_everywhere(int argc, char** argv, Enrol enrol, benchmark::BenchmarkReporter* shown = nullptr) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    if (context.transport_name() == "threads") {
      throw muster::configuration_error(
          "ranks that are threads cannot run this (Google Benchmark has one main thread); start with mpirun -n");
    }
    auto& world = context.world();
    auto settings = world.settings();
    settings.timeout = muster::seconds(3600);  // Ranks meet after each row, which may take long.
    world.set_settings(settings);

    const auto file_name = take_flag(argc, argv, "--benchmark_out=");
    (void)take_flag(argc, argv, "--benchmark_out_format=");
    // The interleaved order would differ between ranks.
    static char in_order[] = "--benchmark_enable_random_interleaving=false";
    std::vector<char*> words(argv, argv + argc);
    if (world.size() > 1) words.push_back(in_order);
    int count = static_cast<int>(words.size());
    words.push_back(nullptr);
    benchmark::Initialize(&count, words.data());
    if (benchmark::ReportUnrecognizedArguments(count, words.data())) {
      throw muster::configuration_error("a flag is not known (it is named above); --help lists Google Benchmark's");
    }
    enrol(context);

    std::vector<benchmark::BenchmarkReporter*> reporters{shown ? shown : benchmark::CreateDefaultDisplayReporter()};
    std::ofstream file;
    benchmark::JSONReporter to_file;
    if (!file_name.empty() && world.rank() == 0) {
      file.open(file_name);
      if (!file) throw muster::configuration_error("cannot write '" + file_name + "'; name another --benchmark_out");
      to_file.SetOutputStream(&file);
      to_file.SetErrorStream(&file);
      reporters.push_back(&to_file);
    }
    gathering_reporter gather(world, std::move(reporters));
    benchmark::RunSpecifiedBenchmarks(&gather);
  });
}

}  // namespace bench
