// A step of logistic regression on dense rows in memory, each rank independently, compared with the machine's limits:
// Eigen's two-pass matrix-vector products over the same rows, and plain reading from these rows and of memory in order.
//
//   build/release/bench/logistic_regression [--rows=N] [flags of Google Benchmark]
//   mpirun -n 2 build/release/bench/logistic_regression ...     # all ranks at once, not interleaved
//
// All benchmarks' repetitions are interleaved, so that a busy moment of the machine affects all alike. Afterwards the
// ratios of the medians are printed to stderr (stdout keeps the format of --benchmark_format).
#include <benchmark/benchmark.h>

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "everywhere.hpp"
#include "kernels.hpp"

namespace {

constexpr std::size_t batch_size = 100;
constexpr float l2 = 2.5e-6f;
const muster::schedule schedule = muster::parse_schedule("inverse-sqrt:200");

using vector_map = Eigen::Map<Eigen::VectorXf>;
using const_vector_map = Eigen::Map<const Eigen::VectorXf>;

/// The data and models that all benchmarks share.
struct setting {
  setting(muster::context& all, std::size_t rows) : context(&all), data(muster::data::synthetic_epsilon(rows, 1)) {
    targets.assign(data.labels().begin(), data.labels().end());
  }
  muster::context* context;
  muster::group alone{muster::make_self_transport()};
  muster::dataset data;
  std::vector<float> targets;
};

/// Sets the counters of a benchmark: samples, and bytes of rows read.
void count(benchmark::State& state, const setting& with, std::size_t samples) {
  const auto done = state.iterations() * static_cast<std::int64_t>(samples);
  state.SetItemsProcessed(done);
  state.SetBytesProcessed(done * static_cast<std::int64_t>(with.data.features() * sizeof(float)));
}

/// Runs complete steps of examples/logistic_regression: session, loader, kernel, gradient_sync, update, tracker.
void muster_step(benchmark::State& state, setting& with) {
  muster::arena arena(*with.context, {{"weight", {with.data.features()}}, {"bias", {}}});
  muster::gradient_sync sync(arena);
  muster::sgd optimizer(arena, {.decay = l2});
  muster::tracker tracker(with.alone);
  auto loader = with.data | muster::shuffle(1) | muster::batch(batch_size);
  (void)loader.next({0, 1});  // Generates the order of the first epoch before the measurement.
  muster::state trained{arena, optimizer, loader.cursor()};
  auto session = muster::fixed_session(with.alone);
  auto batches = tracker.batches();
  double loss = 0;
  const auto step = [&](muster::step& now) {
    const auto batch = loader.next(now.shard());
    auto backward = sync.begin(now.group());
    backward.add_samples(batch.samples.size());
    backward.divided_by(static_cast<double>(batch.global_size));
    {
      auto phase = tracker.phase(muster::phase::backward);
      backward.clear();
      loss += logistic::add_gradient(
                  with.data, batch.samples, with.targets, {arena.parameter(std::size_t{0}), arena.parameter(1)[0]},
                  1.0f / static_cast<float>(batch.global_size), {backward.gradient(0), backward.gradient(1).data()})
                  .loss;
      backward.ready(1);
      backward.ready(0);
    }
    backward.wait();
    optimizer.apply(schedule(now));
  };
  // The session counts steps, and the benchmark counts the session's steps.
  const auto counted = [&](muster::step& now) {
    (void)state.KeepRunning();
    step(now);
  };
  while (session.run(trained, counted, {.steps = static_cast<std::uint64_t>(state.max_iterations)})) {
  }
  (void)state.KeepRunning();
  benchmark::DoNotOptimize(loss);
  count(state, with, batch_size);
}

/// The reference: two passes of Eigen over 100 rows that are adjacent in memory, and the update.
void eigen_two_pass(benchmark::State& state, setting& with) {
  using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto features = static_cast<Eigen::Index>(with.data.features());
  const Eigen::OuterStride<> stride(static_cast<Eigen::Index>(with.data.stride()));
  Eigen::VectorXf weights = Eigen::VectorXf::Zero(features), gradient(features);
  Eigen::VectorXf factors(batch_size);
  std::size_t first = 0;
  std::uint64_t step = 0;
  for (auto _ : state) {
    const Eigen::Map<const matrix, 0, Eigen::OuterStride<>> rows(with.data.row(first).data(), batch_size, features,
                                                                 stride);
    const const_vector_map signs(with.targets.data() + first, batch_size);
    factors.noalias() = rows * weights;
    factors = -signs.array() / (1.0f + (signs.array() * factors.array()).exp()) / float{batch_size};
    gradient.noalias() = rows.transpose() * factors;
    weights -= static_cast<float>(schedule({.step = step++, .epoch = 0})) * (gradient + l2 * weights);
    first = first + 2 * batch_size <= with.data.size() ? first + batch_size : 0;
  }
  benchmark::DoNotOptimize(weights.data());
  count(state, with, batch_size);
}

/// The same arithmetic on shuffled rows, which do not form a matrix: row by row, in two passes.
void eigen_two_pass_shuffled(benchmark::State& state, setting& with) {
  const auto features = static_cast<Eigen::Index>(with.data.features());
  auto loader = with.data | muster::shuffle(1) | muster::batch(batch_size);
  (void)loader.next({0, 1});
  Eigen::VectorXf weights = Eigen::VectorXf::Zero(features), gradient(features);
  std::vector<float> factors(batch_size);
  std::uint64_t step = 0;
  for (auto _ : state) {
    auto batch = loader.next({0, 1});
    if (!batch) {
      loader.next_epoch();
      batch = loader.next({0, 1});
    }
    const auto row = [&](std::size_t i) { return const_vector_map(with.data.row(batch.samples[i]).data(), features); };
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      const float sign = with.targets[batch.samples[i]];
      factors[i] = -sign / (1.0f + std::exp(sign * row(i).dot(weights))) / static_cast<float>(batch.global_size);
    }
    gradient.setZero();
    for (std::size_t i = 0; i < batch.samples.size(); ++i) gradient.noalias() += factors[i] * row(i);
    weights -= static_cast<float>(schedule({.step = step++, .epoch = 0})) * (gradient + l2 * weights);
    loader.commit();
  }
  benchmark::DoNotOptimize(weights.data());
  count(state, with, batch_size);
}

/// The limit for any order: sums all rows once, in order.
void read_memory(benchmark::State& state, setting& with) {
  const Eigen::Map<const Eigen::ArrayXf> all(with.data.row(0).data(),
                                             static_cast<Eigen::Index>(with.data.size() * with.data.stride()));
  for (auto _ : state) benchmark::DoNotOptimize(all.sum());
  count(state, with, with.data.size());
}

/// The limit for a shuffled order: sums the rows of a step, sixteen at a time, and prefetches half of the next rows.
void read_rows(benchmark::State& state, setting& with) {
  constexpr std::size_t together = 16;
  constexpr auto width = std::max<std::size_t>(EIGEN_MAX_STATIC_ALIGN_BYTES, 16) / sizeof(float);
  using lane = Eigen::Array<float, static_cast<int>(width), 1>;
  auto loader = with.data | muster::shuffle(1) | muster::batch(batch_size - batch_size % together);
  (void)loader.next({0, 1});
  std::array<lane, together> sums = {};
  for (auto _ : state) {
    auto batch = loader.next({0, 1});
    if (!batch) {
      loader.next_epoch();
      batch = loader.next({0, 1});
    }
    const auto row = [&](std::size_t i) {
      return with.data.row(batch.samples[std::min(i, batch.samples.size() - 1)]).data();
    };
    for (std::size_t k = 0; k + together <= batch.samples.size(); k += together) {
      std::array<const float*, together> rows, next;
      for (std::size_t r = 0; r < together; ++r) {
        rows[r] = row(k + r);
        next[r] = row(k + together + r);
      }
      for (std::size_t i = 0; i + width <= with.data.features(); i += width) {
        for (std::size_t r = 0; r < together / 2; ++r) __builtin_prefetch(next[r] + i, 0, 2);
        for (std::size_t r = 0; r < together; ++r) sums[r] += Eigen::Map<const lane>(rows[r] + i);
      }
    }
    loader.commit();
  }
  benchmark::DoNotOptimize(sums);
  count(state, with, batch_size - batch_size % together);
}

/// A reporter that records medians and forwards everything to the user's reporter.
class median_keeper final : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context& context) override {
    shown_ = benchmark::CreateDefaultDisplayReporter();  // The library owns this reporter.
    return shown_->ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const auto& run : runs) {
      if (run.run_type == Run::RT_Aggregate && run.aggregate_name == "median") {
        medians_[run.run_name.function_name] = run.counters.at("items_per_second");
      }
    }
    shown_->ReportRuns(runs);
  }
  void Finalize() override { shown_->Finalize(); }

  void print_ratio(const char* of, const char* to) const {
    if (!medians_.contains(of) || !medians_.contains(to)) return;
    std::fprintf(stderr, "%s / %s = %.2f (%.3g and %.3g samples/s)\n", of, to, medians_.at(of) / medians_.at(to),
                 medians_.at(of), medians_.at(to));
  }

 private:
  benchmark::BenchmarkReporter* shown_ = nullptr;
  std::map<std::string, double> medians_;
};

}  // namespace

int main(int argc, char** argv) {
  std::size_t rows = 50'000;  // 400 MB: larger than any cache.
  if (const auto given = bench::take_flag(argc, argv, "--rows="); !given.empty())
    rows = std::max<std::size_t>(batch_size, std::strtoull(given.c_str(), nullptr, 10));
  // Placed before the user's flags, which take precedence.
  static char interleaved[] = "--benchmark_enable_random_interleaving=true",
              repetitions[] = "--benchmark_repetitions=9", aggregates[] = "--benchmark_report_aggregates_only=true",
              time[] = "--benchmark_min_time=0.1";
  std::vector<char*> words{argv, argv + argc};
  words.insert(words.begin() + 1, {interleaved, repetitions, aggregates, time});
  const int count_of_words = static_cast<int>(words.size());
  words.push_back(nullptr);

  std::optional<setting> with;
  const auto enrol = [&](muster::context& context) {
    with.emplace(context, rows);
    for (const auto& [name, body] :
         {std::pair{"muster_step", &muster_step}, std::pair{"eigen_two_pass", &eigen_two_pass},
          std::pair{"eigen_two_pass_shuffled", &eigen_two_pass_shuffled}, std::pair{"read_rows", &read_rows}}) {
      benchmark::RegisterBenchmark(name, [&with, run = body](benchmark::State& state) {
        run(state, *with);
      })->UseRealTime();
    }
    benchmark::RegisterBenchmark("read_memory", [&with](benchmark::State& state) { read_memory(state, *with); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  median_keeper keeper;
  const int status = bench::run_everywhere(count_of_words, words.data(), enrol, &keeper);
  keeper.print_ratio("muster_step", "eigen_two_pass");
  keeper.print_ratio("muster_step", "eigen_two_pass_shuffled");
  keeper.print_ratio("muster_step", "read_rows");
  keeper.print_ratio("muster_step", "read_memory");
  return status;
}
