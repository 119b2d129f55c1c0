// Conditions that end a training before its epochs do, and the state that is kept then.
#include <muster/train/training.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <stdexcept>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include "../data/files.hpp"
#include "catch.hpp"
#include "train/saved_steps.hpp"
#include "trained.hpp"

using test::as_ranks;
using test::require;
using test::trained;

namespace {

// Reports the n-th value after epoch n, and the last value in all later epochs.
void run_with(trained& fixture, muster::train_options options, const std::vector<double>& values) {
  options.each_epoch = [&](muster::training_step& evaluation) {
    evaluation.report("val_accuracy", values[std::min(fixture.training.epochs().size(), values.size() - 1)]);
  };
  fixture.run(options);
}

}  // namespace

TEST_CASE("a training ends when it has trained for so long, and the epoch that this cuts off is summed up") {
  std::mutex mutex;
  std::vector<std::vector<muster::epoch_summary>> all;
  for (const double limit : {1e-9, 1e9}) {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained limited(context);
      limited.run({.epochs = 3, .max_seconds = limit, .log = nullptr});
      const std::lock_guard lock(mutex);
      all.push_back(limited.training.epochs());
    });
  }
  REQUIRE(all.size() == 4);
  for (const std::size_t k : {0u, 1u}) {  // after the first check, which follows the first step
    REQUIRE(all[k].size() == 1);
    CHECK(all[k][0].samples == 8);
  }
  for (const std::size_t k : {2u, 3u}) CHECK(all[k].size() == 3);
}

TEST_CASE("a training ends when its metric no longer improves, and keeps the best checkpoint") {
  const bool up = GENERATE(true, false);
  const std::string metric = up ? "val_accuracy up" : "val_accuracy down";
  const auto values = up ? std::vector<double>{0.2, 0.4, 0.4, 0.3, 0.5} : std::vector<double>{0.5, 0.1, 0.3, 0.2, 0.0};
  const temporary_folder folder;
  const std::string at = folder / "saved";
  for (const std::uint64_t patience : {2, 2, 0}) {
    CAPTURE(metric, patience);
    as_ranks(2, [&](muster::context& context, muster::group& world) {
      trained fixture(context);
      std::FILE* const log = std::tmpfile();
      const auto before = saved_steps(at);
      muster::barrier(world);
      run_with(fixture,
               {.epochs = 7,
                .metric = metric,
                .patience = patience,
                .checkpoint = at,
                .checkpoint_every = "5 epochs",
                .keep = 1,
                .log = log},
               values);
      std::rewind(log);
      char text[4096] = {};
      const std::string output(text, std::fread(text, 1, sizeof text, log));
      std::fclose(log);
      muster::barrier(world);
      require(fixture.training.epochs().size() == (patience != 0 ? 4 : 7), "two epochs after the best one, or all");
      if (patience != 0) require(saved_steps(at) == std::vector<std::uint64_t>{10, 20}, "the best, and the last");
      if (world.rank() != 0) return;
      if (patience == 0)
        require(output.starts_with("resumes after step 20, in epoch 4\nepoch 5: "), "it goes on without patience");
      else if (before.empty())
        require(output.ends_with("ends: val_accuracy was best in epoch 2\n"), "it says why it ends");
      else
        require(output.starts_with("nothing to do: "), "it has ended");
    });
  }
}

TEST_CASE("a checkpoint amid an epoch has no metric, so that the best one stays") {
  const temporary_folder folder;
  const std::string at = folder / "saved";
  as_ranks(2, [&](muster::context& context, muster::group&) {
    trained fixture(context);
    run_with(fixture,
             {.epochs = 4, .patience = 9, .checkpoint = at, .checkpoint_every = "2 steps", .keep = 1, .log = nullptr},
             {0.2, 0.9, 0.1, 0.1});
  });
  CHECK(saved_steps(at) == std::vector<std::uint64_t>{10, 20});
}

TEST_CASE("an epoch whose evaluation failed is evaluated when the training goes on, and counts once") {
  const std::uint64_t epochs = GENERATE(std::uint64_t{2}, std::uint64_t{3});
  const int ranks = GENERATE(1, 2);
  CAPTURE(epochs, ranks);
  const temporary_folder folder;
  const std::string at = folder / "saved";
  const auto run = [&](bool fails) {
    as_ranks(ranks, [&](muster::context& context, muster::group&) {
      trained fixture(context);
      muster::train_options options{.epochs = epochs, .checkpoint = at, .log = nullptr};
      options.each_epoch = [&](muster::training_step& evaluation) {
        if (fails && fixture.training.epochs().size() == 1)
          throw muster::data_error({"postgres:db"}, "cannot be read; wait for it");
        evaluation.report("val_accuracy", 0.5);
      };
      fixture.run(options);
      const auto& ended = fixture.training.epochs();
      require(ended.size() == epochs, "every epoch");
      for (const auto& epoch : ended) require(epoch.samples == 40 && epoch["val_accuracy"] == 0.5, "each by itself");
    });
  };
  CHECK_THROWS_WITH(run(true), contains("postgres:db: cannot be read"));
  const auto saved = saved_steps(at);
  REQUIRE(!saved.empty());
  CHECK(saved.back() == 10);
  run(false);
  run(false);  // a training at its end evaluates nothing again
}

TEST_CASE("an epoch amid which a training was resumed is reported whole") {
  const int ranks = GENERATE(1, 3);
  const std::string mode = GENERATE("allreduce", "local-sgd:2");
  CAPTURE(ranks, mode);
  const temporary_folder folder;
  const std::string at = folder / "saved";
  const auto run = [&](std::uint64_t fails_at) {
    as_ranks(ranks,
             [&](muster::context& context, muster::group&) {
               trained fixture(context);
               const muster::train_options options{
                   .epochs = 2, .checkpoint = at, .checkpoint_every = "3 steps", .log = nullptr};
               try {
                 fixture.training.run(options, [&](muster::training_step& step) {
                   fixture.one_step(step);
                   step.report("step", static_cast<double>(step.number()));
                   if (step.number() == fails_at) throw std::runtime_error("the user's own");
                 });
               } catch (const std::runtime_error& thrown) {
                 require(std::string(thrown.what()) == "the user's own", thrown.what());
                 return;
               }
               const auto& epochs = fixture.training.epochs();
               require(epochs.size() == 2 && epochs[1].samples == 40, "every sample once");
               require(std::abs(epochs[1]["value"] - 20.5) < 1e-12, "the mean of 1 to 40");
               require(epochs[1]["step"] == 7.0, "the mean of 5 to 9");
             },
             {"--mode", mode});
  };
  run(9);  // during the second epoch
  const auto saved = saved_steps(at);
  REQUIRE(!saved.empty());
  CHECK(saved.back() < 10);
  run(1000);
}

TEST_CASE("a training ends where the program says, and its lines are the program's") {
  as_ranks(3, [](muster::context& context, muster::group& world) {
    trained fixture(context);
    std::vector<std::uint64_t> lines;
    int meetings = 0;
    fixture.run({.epochs = 9,
                 .stop = [](const auto& epoch) { return epoch["value"] > 20 && epoch.epoch == 2; },
                 .each_group =
                     [&](muster::group& ranks, bool joined) {
                       require(ranks.size() == 3 && !joined, "all ranks, from the start");
                       ++meetings;
                     },
                 .print = [&](const auto& epoch) { lines.push_back(epoch.epoch); }});
    require(fixture.training.epochs().size() == 2, "two epochs");
    require(meetings == 1, "they met once");
    require(lines == (world.rank() == 0 ? std::vector<std::uint64_t>{1, 2} : std::vector<std::uint64_t>{}), "rank 0's");
  });
}

TEST_CASE("a schedule among the owners observes the metric, and what it has seen stays") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained fixture(context);
    auto rate = muster::parse_schedule("plateau:8,factor=0.5,patience=0,better=higher");
    muster::arena arena(context, {{"w", {2}}});
    muster::sgd optimizer(arena);
    muster::training training(context, arena, optimizer, fixture.loader, rate);
    std::vector<double> rates;
    training.run({.epochs = 4,
                  .each_epoch = [](muster::training_step& evaluation) { evaluation.report("val_accuracy", 0.5); },
                  .log = nullptr},
                 [&](muster::training_step& step) {
                   (void)step.next(fixture.loader);
                   if (step.number() % 5 == 0) rates.push_back(rate(step));
                 });
    require(rates == std::vector<double>{8, 8, 4, 2}, "it falls with each epoch that is no better");
  });
}

TEST_CASE("amid an epoch all ranks have one state, also where each counts the samples of its own") {
  const std::string mode = GENERATE("allreduce", "allreduce-weights");
  CAPTURE(mode);
  as_ranks(2,
           [](muster::context& context, muster::group& world) {
             trained fixture(context, 40, 7);  // 4 samples of a batch at rank 0, and 3 at rank 1
             const auto one_step = [&](muster::training_step& step) { fixture.one_step(step); };
             for (std::uint64_t steps = 1; steps <= 5; ++steps) {
               fixture.training.run({.steps = steps, .log = nullptr}, one_step);
               const std::uint64_t digest = fixture.training.state().digest();
               require(muster::allreduce(world, digest, muster::max) == digest, "a state like the other's");
             }
             fixture.training.run({.epochs = 1, .log = nullptr}, one_step);
             require(fixture.training.state().steps() == 6, "every sample once");
           },
           {"--mode", mode});
}

TEST_CASE(
    "a second backward pass is refused behind an optimizer that steps at the commit, by what gradients are then") {
  const std::string mode = GENERATE("allreduce", "allreduce-weights");
  CAPTURE(mode);
  as_ranks(1,
           [&](muster::context& context, muster::group&) {
             trained fixture(context);
             const auto twice = [&](muster::training_step& step) {
               fixture.one_step(step);
               fixture.one_step(step);
             };
             const muster::train_options once{.steps = 1, .log = nullptr};
             if (mode == "allreduce")
               CHECK_THROWS_WITH(fixture.training.run(once, twice),
                                 contains("a second backward pass cannot begin (an opt"));
             else
               CHECK_NOTHROW(fixture.training.run(once, twice));
             fixture.training.run({.steps = 3, .log = nullptr}, [&](muster::training_step& step) {
               const auto batch = step.next(fixture.loader);
               step.backward(batch, [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
               step.update([] {});  // has read the gradients
               fixture.one_step(step);
             });
             CHECK(fixture.training.state().steps() == 3);
           },
           {"--mode", mode});
}
