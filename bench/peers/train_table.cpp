// Trains a linear model for an epoch on the rows of a source: a table that may be larger than memory.
//
//   train_table 'csv:table.csv?label=y' [--ranks N ...]
//
// Prints rows per second, and the process's peak resident memory. bench/memory.py generates the tables.
#include <sys/resource.h>

#include <cstdio>
#include <string>

#include <muster/muster.hpp>

int main(int argc, char** argv) {
  const std::string source = argc > 1 ? argv[1] : "";
  return muster::run_main(argc, argv, [&](muster::context& context) {
    const auto start = muster::clock::now();
    auto loader = muster::open_source(source) | muster::shuffle(1) | muster::batch(1024) | muster::prefetch(4);
    const double opened = muster::seconds_since(start);
    const std::size_t width = loader.schema().record_bytes() / sizeof(float);
    muster::arena arena(context, {{"weights", {width}}});
    muster::sgd optimizer(arena);
    muster::training training(context, arena, optimizer, loader);
    training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(loader), [&](const muster::minibatch& part, muster::backward_pass& pass) {
        if (!pass.adds(0)) pass.clear();
        const auto weights = pass.parameter(0);
        const auto gradient = pass.gradient(0);
        for (std::size_t k = 0; k < part.samples.size(); ++k) {
          const auto row = part.values<float>().subspan(k * width, width);
          float error = -part.labels[k];
          for (std::size_t i = 0; i < width; ++i) error += weights[i] * row[i];
          for (std::size_t i = 0; i < width; ++i) gradient[i] += error * row[i];
        }
      });
      step.update(optimizer, 0.001);
    });
    rusage used{};
    ::getrusage(RUSAGE_SELF, &used);
    const double all = muster::seconds_since(start);
    if (context.world().rank() != 0) return;
    std::printf("%llu rows of %zu values: opened in %.1f s, trained in %.1f s, %.0f rows/s, at most %.0f MiB\n",
                static_cast<unsigned long long>(loader.cursor().size), width, opened, all - opened,
                static_cast<double>(loader.cursor().size) / (all - opened), static_cast<double>(used.ru_maxrss) / 1024);
  });
}
