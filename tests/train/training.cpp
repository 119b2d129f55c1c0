#include <muster/train/training.hpp>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/train/optimizers/sgd.hpp>

#include "../data/files.hpp"
#include "catch.hpp"
#include "command_line.hpp"

namespace {

using pass = muster::backward_pass;

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

// Samples whose value is their number, from 1.
muster::dataset numbers(std::size_t count) {
  auto made = muster::dataset_builder::dense("numbers", count, 1);
  for (std::size_t i = 0; i < count; ++i) made.row(i)[0] = static_cast<float>(i + 1);
  return made.finish();
}

// One rank of a training whose gradient is the sum of the samples' values: sums of whole numbers, and so exact.
struct trained {
  explicit trained(muster::context& context, std::size_t samples = 40, std::uint64_t batch = 8)
      : data(numbers(samples)),
        loader(data | muster::shuffle(3) | muster::batch(batch)),
        arena(context, {{"w", {2}}}),
        optimizer(arena),
        training(context, arena, optimizer, loader) {}

  void gradient(const muster::minibatch& part, pass& to) const {
    const bool adds = to.adds(0);
    const auto out = to.gradient(0);
    if (!adds) out[0] = out[1] = 0;
    for (const auto id : part.samples) {
      out[0] += data.row(id)[0];
      out[1] += 1;
    }
  }
  void one_step(muster::training_step& step) {
    const auto batch = step.next(loader);
    step.backward(batch, [&](const auto& part, auto& to) { gradient(part, to); });
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

// Runs a body as every rank of a context of so many.
template <class Body>
void as_ranks(int ranks, Body body) {
  test::command_line line({"app", "--ranks", std::to_string(ranks)});
  muster::context context(line.argc, line.argv());
  context.run([&](muster::group& world) { body(context, world); });
}

}  // namespace

TEST_CASE("an epoch reports the mean over its samples, whatever the number of ranks") {
  const int ranks = GENERATE(1, 2, 3, 11);  // of a batch of 8: some have no sample
  as_ranks(ranks, [](muster::context& context, muster::group&) {
    trained here(context);
    here.run({.epochs = 2, .log = nullptr});
    const auto& epochs = here.training.epochs();
    require(epochs.size() == 2 && epochs[1].epoch == 2, "two epochs");
    for (const auto& one : epochs) {
      require(one.samples == 40, "every sample once");
      require(std::abs(one["value"] - 20.5) < 1e-12, "the mean of 1 to 40");
      require(std::isnan(one["nothing"]), "what nobody reported");
    }
    require(here.arena.parameter(0)[1] == -10.0f, "a mean gradient of 1 in each of ten steps");
  });
}

TEST_CASE(
    "gradients that a model does not say are ready leave when its pass is over, and micro-batches are one batch") {
  const int ranks = GENERATE(1, 3);
  std::mutex mutex;
  std::map<int, std::vector<float>> ended;  // by the number of micro-batches
  for (const int parts : {1, 2, 5}) {
    as_ranks(ranks, [&](muster::context& context, muster::group&) {
      trained here(context);
      here.training.run({.epochs = 3, .log = nullptr}, [&](muster::training_step& step) {
        const auto batches = step.next(here.loader).split(parts);
        step.backward(batches, [&](const auto& part, auto& to) { here.gradient(part, to); });
        step.update(here.optimizer, 0.5);
      });
      const auto values = here.arena.parameters();
      const std::lock_guard lock(mutex);
      const auto [at, first] = ended.try_emplace(parts, values.begin(), values.end());
      require(first || std::ranges::equal(at->second, values), "the same at every rank");
    });
  }
  CHECK(ended[1] == ended[2]);
  CHECK(ended[1] == ended[5]);
  CHECK(ended[1][1] == -7.5f);
}

TEST_CASE("what a step reports and updates that fails counts when it is run again, once") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    trained here(context);
    int calls = 0;
    const auto fails_once = [&](muster::training_step& step) {
      here.one_step(step);
      if (++calls == 3) throw std::runtime_error("the user's own");
    };
    CHECK_THROWS_WITH(here.training.run({.epochs = 1, .log = nullptr}, fails_once), "the user's own");
    CHECK(here.training.state().steps() == 2);
    CHECK(here.arena.parameter(0)[1] == -2.0f);
    here.training.run({.epochs = 1, .log = nullptr}, fails_once);
    CHECK(calls == 6);
    CHECK(here.training.epochs().at(0).samples == 40);
    CHECK(std::abs(here.training.epochs()[0]["value"] - 20.5) < 1e-12);
    CHECK(here.arena.parameter(0)[1] == -5.0f);
  });
}

TEST_CASE("a value that is not finite ends the training, naming it, step and rank") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    trained here(context);
    const auto diverges = [&](muster::training_step& step) {
      here.one_step(step);
      step.report("loss", step.number() < 2 ? 1.0 : std::numeric_limits<double>::infinity());
    };
    CHECK_THROWS_WITH(here.training.run({.epochs = 1, .log = nullptr}, diverges),
                      "loss is inf in step 2 at rank 0 (the training has diverged); lower the learning rate, or clip "
                      "gradients");
    CHECK_THROWS_AS(here.training.run({.epochs = 1, .log = nullptr}, diverges), muster::training_error);
    CHECK(here.training.state().steps() == 2);
  });
}

TEST_CASE("a training goes on from its checkpoints, as if it had never ended, and says when it is at its end") {
  const temporary_folder folder;
  const std::string every = GENERATE("epoch", "2 epochs", "3 steps", "10 minutes");
  CAPTURE(every);
  const std::string at = folder / ("saved " + every);
  std::mutex mutex;
  std::vector<float> straight, resumed;
  std::string said;
  const auto keep = [&](std::vector<float>& to, std::span<const float> values) {
    const std::lock_guard lock(mutex);
    to.assign(values.begin(), values.end());
  };
  as_ranks(2, [&](muster::context& context, muster::group&) {
    trained here(context);
    here.run({.epochs = 5, .log = nullptr});
    keep(straight, here.arena.parameters());
  });
  for (const std::uint64_t epochs : {3, 5, 5}) {
    as_ranks(2, [&](muster::context& context, muster::group& world) {
      trained here(context);
      std::FILE* const log = std::tmpfile();
      here.run({.epochs = epochs, .checkpoint = at, .checkpoint_every = every, .log = log});
      keep(resumed, here.arena.parameters());
      require(here.training.epochs().size() == epochs, "those of before are there");
      std::rewind(log);
      char text[4096] = {};
      const auto size = std::fread(text, 1, sizeof text - 1, log);
      std::fclose(log);
      require(world.rank() == 0 || size == 0, "rank 0 speaks");
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) said = text;
    });
  }
  CHECK(resumed == straight);
  CHECK(said == "nothing to do: the training in '" + at + "' has ended, after 25 steps\n");
}

TEST_CASE("after each epoch the program may evaluate, with reports of its own") {
  as_ranks(3, [](muster::context& context, muster::group&) {
    trained here(context);
    muster::train_options options{.epochs = 2, .log = nullptr};
    int evaluations = 0;
    options.each_epoch = [&](muster::training_step& now) {
      ++evaluations;
      now.report("val_accuracy", now.group().rank() == 0 ? 1.0 : 0.25, now.group().rank() == 0 ? 2.0 : 1.0);
    };
    here.run(options);
    require(evaluations == 2, "one an epoch");
    require(here.training.epochs()[1]["val_accuracy"] == 0.625, "the weighted mean");
  });
}

TEST_CASE("options of a training that cannot be used are refused") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    trained here(context);
    CHECK_THROWS_WITH(here.run({.log = nullptr}),
                      "a training would not end (there is no limit); give {.epochs = N} or {.steps = N}");
    for (const char* every : {"", "0 epochs", "fortnight", "-1 steps", "2", "1.5 minutes", "steps 2"}) {
      CAPTURE(every);
      CHECK_THROWS_AS(here.run({.epochs = 1, .checkpoint_every = every, .log = nullptr}), muster::configuration_error);
    }
    CHECK(here.training.state().steps() == 0);
  });
}
