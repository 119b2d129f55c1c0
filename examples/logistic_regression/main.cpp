// L2-regularised logistic regression by synchronous SGD, MLBench's task 2a (docs/logistic-regression.md).
//
//   mpirun -n 2 build/release/examples/logistic_regression --train libsvm:a9a --test libsvm:a9a.t --json out.json
//   build/release/examples/logistic_regression --ranks 2 --synthetic epsilon:20000 --preset mlbench-2a
#include <cstdio>

#include <muster/core/atomic_file.hpp>
#include <muster/muster.hpp>

#include "../job.hpp"
#include "options.hpp"
#include "problem.hpp"
#include "training.hpp"

int main(int argc, char** argv) {
  const auto run = [&](muster::context& context) {
    const auto chosen = logistic::parse_options(argc, argv, examples::workers_of(context));
    for (const auto& path : {chosen.json, chosen.save})
      if (context.launcher().rank == 0 && !path.empty()) muster::require_writable(path);
    const auto data = logistic::open_problem(chosen);  // Ranks that are threads share the data.
    context.run([&](muster::group& world) { logistic::train(context, world, data, chosen); });
  };
  return muster::run_main(argc, argv, run, {.help = logistic::help_text});
}
