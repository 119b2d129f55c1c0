// The optimizer's step over an arena compared with the memory limit. For each optimizer a loop reads and writes the
// same arrays without further work, in turns with the step, on one thread, measured in CPU time. LARS needs the norms
// of a tensor before it changes its first number, so that its loop also reads each tensor twice.
//   build/release/bench/optimizer [--parameters N] [--rounds N] [--benchmark_format=json]
//   mpirun -n 2 build/release/bench/optimizer ...     # all ranks at once, each with an arena of its own
// bench/peers/optimizer.py runs it in turns with PyTorch.
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <muster/muster.hpp>

#include "protocol.hpp"
#include "rows.hpp"

namespace {

constexpr std::size_t tensors = 100;  // About as many as in a ResNet-50.

struct heap {
  template <class T>
  muster::buffer<T> allocate(std::size_t size) {
    return muster::buffer<T>(size);
  }
};

// Returns the CPU time, so that other programs on the machine do not count.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Work>
double seconds_of(const Work& work) {
  const double begin = now();
  work();
  return now() - begin;
}

volatile float benchmark_sink = 0;  // Keeps the compiler from removing the reads.

// The memory accesses of a step with zero, one and two arrays of state. Not inlined: otherwise the compiler loses the
// information that the arrays do not overlap.
[[gnu::noinline]] void touch(float* __restrict__ p, const float* __restrict__ g, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) p[i] += g[i];
}
[[gnu::noinline]] void touch(float* __restrict__ p, const float* __restrict__ g, float* __restrict__ v,
                             std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    p[i] += g[i];
    v[i] += g[i];
  }
}
[[gnu::noinline]] void touch(float* __restrict__ p, const float* __restrict__ g, float* __restrict__ m,
                             float* __restrict__ s, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    p[i] += g[i];
    m[i] += g[i];
    s[i] += g[i];
  }
}

/// The memory reads of a tensor's norms.
[[gnu::noinline]] float read(const float* __restrict__ p, const float* __restrict__ g, std::size_t count) {
  constexpr std::size_t lanes = 32;
  float sums[lanes] = {};
  for (std::size_t i = 0; i + lanes <= count; i += lanes) {
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += p[i + lane] + g[i + lane];
  }
  return std::accumulate(sums, sums + lanes, 0.0f);
}

struct contender {
  std::string spec;
  std::vector<std::string> states;  // State arrays in the arena.
  bool reads_twice = false;
};

void touch(const contender& candidate, muster::arena& arena, std::size_t first, std::size_t count) {
  float* const p = arena.parameters().data() + first;
  const float* const g = arena.gradients().data() + first;
  const auto state = [&](std::size_t which) { return arena.state(candidate.states[which]).data() + first; };
  if (candidate.reads_twice) benchmark_sink = read(p, g, count);
  if (candidate.states.empty())
    touch(p, g, count);
  else if (candidate.states.size() == 1)
    touch(p, g, state(0), count);
  else
    touch(p, g, state(0), state(1), count);
}

/// Measures an optimizer's step and its limit, in turns; on all ranks at once.
void measure(const contender& candidate, std::size_t parameters, int rounds, muster::group& world,
             bench::row_report& report) {
  heap memory;
  std::vector<muster::tensor_shape> shapes;
  for (std::size_t t = 0; t < tensors; ++t)
    shapes.push_back({"tensor " + std::to_string(t), {10, parameters / tensors / 10}});
  muster::arena arena(memory, shapes);
  auto optimizer = muster::make_optimizer(arena, candidate.spec);
  std::fill(arena.parameters().begin(), arena.parameters().end(), 0.5f);
  std::fill(arena.gradients().begin(), arena.gradients().end(), 1e-3f);
  const std::size_t count = arena.parameters().size();
  std::vector<double> steps, limits;
  for (int round = -2; round < rounds; ++round) {
    muster::barrier(world);
    const double step = seconds_of([&] { optimizer.apply(1e-3); });
    const double limit = seconds_of([&] {
      for (std::size_t t = 0; t < tensors; ++t)
        touch(candidate, arena, arena.places()[t].first, arena.places()[t].count);
    });
    if (round < 0) continue;
    steps.push_back(step);
    limits.push_back(limit);
  }
  const double step = muster::allreduce(world, bench::median(steps), muster::max);
  const double limit = muster::allreduce(world, bench::median(limits), muster::max);
  const double bytes = static_cast<double>(count * sizeof(float) * (3 + 2 * candidate.states.size())) * world.size();
  report.print("%-26s %10.2f %10.2f %9.2f %9.1f\n", candidate.spec.c_str(), step * 1e3, limit * 1e3, limit / step,
               bytes / step * 1e-9);
  report.add(candidate.spec, step, world.size() / step, {{"limit_seconds", limit}});
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv, [&](muster::context& context) {
    auto& world = context.world();
    const auto flags = bench::take_report_flags(argc, argv);
    std::size_t parameters = 25'000'000;
    int rounds = flags.quick ? 1 : 15;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--parameters") == 0 && i + 1 < argc)
        parameters = std::strtoull(argv[++i], nullptr, 10);
      else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
        rounds = std::max(1, std::atoi(argv[++i]));
      else
        throw muster::configuration_error("unknown argument '" + std::string(argv[i]) +
                                          "' (known: --parameters N, --rounds N); drop it");
    }
    bench::row_report report(flags, world);
    report.print("%zu parameters, median of %d rounds, %d ranks, one thread each\n\n%-26s %10s %10s %9s %9s\n",
                 parameters, rounds, world.size(), "optimizer", "step, ms", "limit, ms", "of limit", "GB/s");
    const contender contenders[] = {{"sgd", {}},
                                    {"momentum:0.9,decay=1e-4", {"velocity"}},
                                    {"nesterov:0.9,decay=1e-4", {"velocity"}},
                                    {"adamw,decay=1e-2", {"mean", "square"}},
                                    {"lars:0.9,decay=1e-4", {"velocity"}, true}};
    for (const auto& candidate : contenders) measure(candidate, parameters, rounds, world, report);
    report.write();
  });
}
