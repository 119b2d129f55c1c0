// What a benchmark of several ranks needs of Google Benchmark: the same rows and iterations at every rank, the slowest
// rank's time, and one report.
#pragma once

#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include <muster/muster.hpp>

#include "protocol.hpp"

namespace bench {

/// Says nothing: what all ranks but 0 report to, so that the output of rank 0 stays one valid document.
class silent_reporter final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

/// Runs the registered benchmarks at every rank of the process and reports at rank 0.
inline void run_registered(int rank) {
  if (rank == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    silent_reporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
}

/// Seconds of each of `count.times` calls, or their mean in a row, with `data`. Collective over `ranks`; the same at
/// every rank.
template <class Call>
std::vector<double> slowest_times(op what, muster::group& ranks, std::span<float> data, repeats count, Call call) {
  auto stamps = call_stamps(
      what, data, count, [&] { muster::barrier(ranks); }, call);
  muster::allreduce(ranks, stamps, muster::max);
  return seconds_of(stamps);
}

}  // namespace bench
