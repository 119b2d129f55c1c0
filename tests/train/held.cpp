// A training that prints the memory of its ranks. Each step writes the gradients of all tensors.
//
// usage: test_held [--tensors N] [--elements N] [--batch N] [--epochs N] [--initial zero|direct|function]
//   --initial   the initial values are zeros, written to the arena, or computed by a function (`arena::initialise`)
// Each rank prints "rank R began with N KiB, held N KiB in N ms" at its end, from the peaks of its resident memory. The
// rank that has the final parameters prints "mean V", the mean of the parameters.
#include <muster/train/training.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/core/env.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>

namespace {

struct words {
  std::size_t tensors = 16, elements = std::size_t{1} << 20;
  std::uint64_t batch = 16, epochs = 1;
  std::string initial = "zero";
};

words read_words(int argc, char** argv) {
  words read;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--tensors") read.tensors = std::stoul(value);
    if (name == "--elements") read.elements = std::stoul(value);
    if (name == "--batch") read.batch = std::stoul(value);
    if (name == "--epochs") read.epochs = std::stoul(value);
    if (name == "--initial") read.initial = value;
  }
  return read;
}

// Returns the largest resident memory of this process in KiB.
std::size_t peak() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoul(line.substr(6));
  }
  return 0;
}

float initial_value(std::size_t element) { return static_cast<float>(muster::random_stream(element).uniform()); }

void train(muster::context& context, muster::group& world, const words& arguments) {
  const auto before = peak();
  constexpr std::size_t samples = 64;
  auto builder = muster::data::dataset_builder::dense("numbers", samples, 1);
  for (std::size_t i = 0; i < samples; ++i) builder.row(i)[0] = static_cast<float>(i + 1) / samples;
  const auto data = builder.finish();
  auto loader = data | muster::shuffle(3) | muster::batch(arguments.batch);
  std::vector<muster::tensor_shape> shapes;
  for (std::size_t t = 0; t < arguments.tensors; ++t) shapes.push_back({"w" + std::to_string(t), {arguments.elements}});
  muster::arena arena(context, shapes);
  for (std::size_t t = 0; t < arguments.tensors; ++t) {
    if (arguments.initial == "function") arena.initialise(t, initial_value);
    if (arguments.initial != "direct") continue;
    for (std::size_t k = 0; k < arguments.elements; ++k) arena.parameter(t)[k] = initial_value(k);
  }
  muster::sgd optimizer(arena);
  muster::training training(context, arena, optimizer, loader);
  const auto begin = muster::clock::now();
  training.run({.epochs = arguments.epochs,
                .at_end =
                    [&](muster::training_step& step) {
                      const auto values = std::as_const(arena).parameters();
                      const double sum = std::accumulate(values.begin(), values.end(), 0.0);
                      if (step.group().rank() == 0)
                        std::printf("mean %.9f\n", sum / static_cast<double>(values.size()));
                    }},
               [&](muster::training_step& step) {
                 const auto batch = step.next(loader);
                 step.backward(batch, [&](const auto& part, auto& pass) {
                   float sum = 0;
                   for (const auto id : part.samples) sum += data.row(id)[0];
                   for (std::size_t t = 0; t < arguments.tensors; ++t) {
                     const auto values = pass.parameter(t);
                     const auto gradients = pass.gradient(t);
                     for (std::size_t k = 0; k < values.size(); ++k) gradients[k] = sum * (values[k] - 2);
                   }
                 });
                 step.update(optimizer, 0.1);
                 step.report("distance", 2.0 - double{std::as_const(arena).parameters()[0]}, batch.samples.size());
               });
  std::printf("rank %d began with %zu KiB, held %zu KiB in %.0f ms\n", world.rank(), before, peak(),
              1000 * muster::seconds_since(begin));
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run_main(argc, argv,
                          [&](muster::context& context) {
                            const auto arguments = read_words(argc, argv);
                            context.run([&](muster::group& world) { train(context, world, arguments); });
                          },
                          {.help = [] { return std::string(); }});
}
