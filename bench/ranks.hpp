// Adapters for benchmarks of several ranks with Google Benchmark: the same rows and iterations at every rank, the
// slowest rank's time, and one report.
#pragma once

#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include <muster/muster.hpp>

#include "protocol.hpp"

namespace bench {

/// A reporter that prints nothing. All ranks except 0 use it, so that the output of rank 0 is one valid document.
class silent_reporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

/// Runs the registered benchmarks in this process, and reports if its rank is 0.
inline void run_registered(int rank) {
  if (rank == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    silent_reporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
}

/// Returns the seconds for each of `count.times` calls, or the mean of consecutive calls, with `data`. Collective over
/// `ranks`; returns equal values at every rank.
template <class Call>
std::vector<double> slowest_times(op operation, muster::group& ranks, std::span<float> data, repeats count, Call call) {
  auto stamps = call_stamps(
      operation, data, count, [&] { muster::barrier(ranks); }, call);
  muster::allreduce(ranks, stamps, muster::max);
  return seconds_of(stamps);
}

}  // namespace bench
