// A minimal training with ranks as threads.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/train/training.hpp>

#include "command_line.hpp"
#include "require.hpp"

namespace test {

using pass = muster::backward_pass;

// Returns samples whose value is their number, from 1.
inline muster::dataset numbers(std::size_t count) {
  auto builder = muster::data::dataset_builder::dense("numbers", count, 1);
  for (std::size_t i = 0; i < count; ++i) builder.row(i)[0] = static_cast<float>(i + 1);
  return builder.finish();
}

// A rank of a training whose gradient is the sum of the samples' values: sums of integers, and therefore exact.
struct trained {
  explicit trained(muster::context& context, std::size_t samples = 40, std::uint64_t batch = 8)
      : data(numbers(samples)),
        loader(data | muster::shuffle(3) | muster::batch(batch)),
        arena(context, {{"w", {2}}}),
        optimizer(arena),
        training(context, arena, optimizer, loader) {}

  void gradient(const muster::minibatch& part, pass& target) const {
    const bool adds = target.adds(0);
    const auto out = target.gradient(0);
    if (!adds) out[0] = out[1] = 0;
    for (const auto id : part.samples) {
      out[0] += data.row(id)[0];
      out[1] += 1;
    }
  }
  void one_step(muster::training_step& step) {
    const auto batch = step.next(loader);
    step.backward(batch, [&](const auto& part, auto& backward) { gradient(part, backward); });
    step.update(optimizer, 1.0);
    double sum = 0;
    for (const auto id : batch.samples) sum += double{data.row(id)[0]};
    const auto n = static_cast<double>(batch.samples.size());
    step.report("value", sum / n, n);
  }
  void run(const muster::train_options& options) {
    training.run(options, [this](muster::training_step& step) { one_step(step); });
  }

  muster::dataset data;
  muster::loader loader;
  muster::arena arena;
  muster::sgd optimizer;
  muster::training training;
};

// Runs a body as every rank of a context with this number of ranks.
template <class Body>
void as_ranks(int ranks, Body body, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> words = {"app", "--ranks", std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  test::command_line line(words);
  muster::context context(line.argc, line.argv());
  context.run([&](muster::group& world) { body(context, world); });
}

}  // namespace test
