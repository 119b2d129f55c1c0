#include <muster/train/training.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>

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

TEST_CASE("an epoch reports the mean over its samples, whatever the number of ranks") {
  const int ranks = GENERATE(1, 2, 3, 11);  // ranks of a batch of 8: some have no sample
  as_ranks(ranks, [](muster::context& context, muster::group&) {
    trained fixture(context);
    fixture.run({.epochs = 2, .log = nullptr});
    const auto& epochs = fixture.training.epochs();
    require(epochs.size() == 2 && epochs[1].epoch == 2, "two epochs");
    for (const auto& epoch : epochs) {
      require(epoch.samples == 40, "every sample once");
      require(std::abs(epoch["value"] - 20.5) < 1e-12, "the mean of 1 to 40");
      require(std::isnan(epoch["nothing"]), "what nobody reported");
    }
    require(fixture.arena.parameter(0)[1] == -10.0f, "a mean gradient of 1 in each of ten steps");
  });
}

TEST_CASE(
    "gradients that a model does not say are ready leave when its pass is over, and micro-batches are one batch") {
  const int ranks = GENERATE(1, 3);
  std::mutex mutex;
  std::map<int, std::vector<float>> ended;  // by the number of micro-batches
  for (const int parts : {1, 2, 5}) {
    as_ranks(ranks, [&](muster::context& context, muster::group&) {
      trained fixture(context);
      fixture.training.run({.epochs = 3, .log = nullptr}, [&](muster::training_step& step) {
        const auto batches = step.next(fixture.loader).split(parts);
        step.backward(batches, [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
        step.update(fixture.optimizer, 0.5);
      });
      const auto values = fixture.arena.parameters();
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
    trained fixture(context);
    int calls = 0;
    const auto fails_once = [&](muster::training_step& step) {
      fixture.one_step(step);
      if (++calls == 3) throw std::runtime_error("the user's own");
    };
    CHECK_THROWS_WITH(fixture.training.run({.epochs = 1, .log = nullptr}, fails_once), "the user's own");
    CHECK(fixture.training.state().steps() == 2);
    CHECK(fixture.arena.parameter(0)[1] == -2.0f);
    fixture.training.run({.epochs = 1, .log = nullptr}, fails_once);
    CHECK(calls == 6);
    CHECK(fixture.training.epochs().at(0).samples == 40);
    CHECK(std::abs(fixture.training.epochs()[0]["value"] - 20.5) < 1e-12);
    CHECK(fixture.arena.parameter(0)[1] == -5.0f);
  });
}

TEST_CASE("an update of the user's own counts when its step commits, and calls no collective") {
  const std::string mode = GENERATE("allreduce", "allreduce-weights");
  CAPTURE(mode);
  as_ranks(2, [&](muster::context& context, muster::group&) {
    trained fixture(context);
    muster::arena arena(context, {{"w", {2}}, {"other", {3}}});
    const muster::sync_options options{.mode = muster::parse_sync_mode(mode)};
    muster::training training(context, options, arena, fixture.loader);
    int calls = 0;
    bool collective = false;
    const auto step_of = [&](muster::training_step& step) {
      const auto batch = step.next(fixture.loader);
      step.backward(batch, [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
      const float before = arena.parameter(0)[1];
      step.update([&] {
        if (collective) muster::barrier(step.group());
        for (std::size_t i = 0; i < 2; ++i) arena.parameter(0)[i] -= arena.gradient(0)[i];
      });
      require(mode != "allreduce" || arena.parameter(0)[1] == before, "it does not show within its step");
      step.update([&] { arena.parameter(1)[2] += 1; });
      if (++calls == 3) throw std::runtime_error("the user's own");
      if (calls == 4) step.update([] { throw std::runtime_error("the update's"); });
    };
    const auto throws = [&](const char* text) {
      try {
        training.run({.epochs = 1, .log = nullptr}, step_of);
      } catch (const std::exception& thrown) {
        require(std::string(thrown.what()).find(text) != std::string::npos, thrown.what());
        require(training.state().steps() == 2, "two steps committed");
        require(arena.parameter(0)[1] == -2.0f && arena.parameter(1)[2] == 2.0f, "no more than these shows");
        muster::barrier(context.world());
        return;
      }
      require(false, "it did not throw");
    };
    throws("the user's own");
    throws("the update's");
    collective = true;
    throws("an update called a collective");
    collective = false;
    training.run({.epochs = 1, .log = nullptr}, step_of);
    require(arena.parameter(0)[1] == -5.0f && arena.parameter(1)[2] == 5.0f, "a mean gradient of 1 in each of five");
  });
}

TEST_CASE("a value that is not finite ends the training, naming it, step and rank") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    trained fixture(context);
    const auto diverges = [&](muster::training_step& step) {
      fixture.one_step(step);
      step.report("loss", step.number() < 2 ? 1.0 : std::numeric_limits<double>::infinity());
    };
    CHECK_THROWS_WITH(fixture.training.run({.epochs = 1, .log = nullptr}, diverges),
                      "loss is inf in step 2 at rank 0 (the training has diverged); lower the learning rate, or clip "
                      "gradients");
    CHECK_THROWS_AS(fixture.training.run({.epochs = 1, .log = nullptr}, diverges), muster::training_error);
    CHECK(fixture.training.state().steps() == 2);
  });
}

TEST_CASE("a value that is not finite names the record of the batch that has such a number") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    auto builder = muster::data::dataset_builder::dense("made", 10, 3);
    for (std::size_t k = 0; k < 10; ++k) builder.row(k)[1] = k == 7 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    const muster::dataset data = builder.finish();
    for (const bool fails_early : {false, true}) {
      muster::loader loader = muster::data::any_record_source(data) | muster::batch(5) | muster::prefetch(1);
      muster::arena arena(context, {{"w", {2}}});
      muster::sgd optimizer(arena);
      muster::training training(context, arena, optimizer, loader);
      const auto step_of = [&](muster::training_step& step) {
        float sum = 0;
        step.backward(step.next(loader), [&](const auto& part, auto& pass) {
          pass.clear();
          for (const float value : part.template values<float>()) sum += value;
        });
        step.update(optimizer, 0.1);
        step.report("loss", fails_early ? std::numeric_limits<double>::infinity() : double{sum});
      };
      const auto run = [&] { training.run({.epochs = 1, .log = nullptr}, step_of); };
      if (fails_early) {
        CHECK_THROWS_WITH(run(), contains("loss is inf in step 0") && contains("diverged"));
      } else {
        CHECK_THROWS_WITH(run(), contains("loss is nan in step 1 at rank 0 (made, record 7 has nan in features[1])"));
      }
    }
  });
}

TEST_CASE("a training goes on from its checkpoints, as if it had never ended, and says when it is at its end") {
  const temporary_folder folder;
  const std::string every = GENERATE("epoch", "2 epochs", "3 steps", "10 minutes", "auto");
  CAPTURE(every);
  const std::string at = folder / ("saved " + every);
  std::mutex mutex;
  std::vector<float> straight, resumed;
  std::string output;
  const auto keep = [&](std::vector<float>& destination, std::span<const float> values) {
    const std::lock_guard lock(mutex);
    destination.assign(values.begin(), values.end());
  };
  as_ranks(2, [&](muster::context& context, muster::group&) {
    trained fixture(context);
    fixture.run({.epochs = 5, .log = nullptr});
    keep(straight, fixture.arena.parameters());
  });
  for (const std::uint64_t epochs : {3, 5, 5}) {
    as_ranks(2, [&](muster::context& context, muster::group& world) {
      trained fixture(context);
      std::FILE* const log = std::tmpfile();
      fixture.run({.epochs = epochs, .checkpoint = at, .checkpoint_every = every, .log = log});
      keep(resumed, fixture.arena.parameters());
      require(fixture.training.epochs().size() == epochs, "those of before are there");
      std::rewind(log);
      char text[4096] = {};
      const auto size = std::fread(text, 1, sizeof text - 1, log);
      std::fclose(log);
      require(world.rank() == 0 || size == 0, "rank 0 speaks");
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) output = text;
    });
  }
  CHECK(resumed == straight);
  CHECK(output == "nothing to do: the training in '" + at + "' has ended, after 25 steps\n");
}

TEST_CASE("where a rank can no longer read its data the last step is saved, and the training goes on from there") {
  const int ranks = GENERATE(1, 2, 3);
  CAPTURE(ranks);
  const temporary_folder folder;
  const std::string at = folder / "saved";
  std::vector<float> straight, resumed;
  const auto run = [&](const std::string& checkpoint, std::uint64_t fails_at, std::vector<float>& parameters) {
    as_ranks(ranks, [&](muster::context& context, muster::group& world) {
      trained fixture(context);
      fixture.training.run({.epochs = 5, .checkpoint = checkpoint, .log = nullptr}, [&](muster::training_step& step) {
        if (step.number() == fails_at && world.rank() == ranks - 1)
          throw muster::data_error({"postgres:db"}, "cannot be read; wait for it");
        fixture.one_step(step);
      });
      if (world.rank() == 0) parameters.assign(fixture.arena.parameters().begin(), fixture.arena.parameters().end());
    });
  };
  constexpr std::uint64_t amid_an_epoch = 7, never = 1000;
  run("", never, straight);
  CHECK_THROWS_WITH(run(at, amid_an_epoch, resumed), contains("postgres:db: cannot be read"));
  CHECK(saved_steps(at).back() == amid_an_epoch);
  run(at, never, resumed);
  CHECK(resumed == straight);
}

TEST_CASE("where ranks have weights of their own, one that can no longer read its data costs the steps since a save") {
  constexpr int ranks = 2;
  const std::string mode = GENERATE("local-sgd:3", "gossip");
  CAPTURE(mode);
  const temporary_folder folder;
  const std::string at = folder / "saved";
  using weights_of_ranks = std::vector<std::vector<float>>;
  weights_of_ranks straight(ranks), resumed(ranks);
  const auto run = [&](const std::string& checkpoint, std::uint64_t fails_at, weights_of_ranks& parameters) {
    as_ranks(ranks,
             [&](muster::context& context, muster::group& world) {
               trained fixture(context);
               fixture.training.run({.epochs = 5, .checkpoint = checkpoint, .log = nullptr},
                                    [&](muster::training_step& step) {
                                      if (step.number() == fails_at && world.rank() == 1)
                                        throw muster::data_error({"postgres:db"}, "cannot be read; wait for it");
                                      fixture.one_step(step);
                                    });
               const auto values = fixture.arena.parameters();
               parameters[static_cast<std::size_t>(world.rank())].assign(values.begin(), values.end());
             },
             {"--mode", mode});
  };
  constexpr std::uint64_t amid_an_epoch = 7, never = 1000;
  run("", never, straight);
  CHECK_THROWS_WITH(run(at, amid_an_epoch, resumed), contains("postgres:db: cannot be read"));
  run(at, never, resumed);
  CHECK(resumed == straight);
}

TEST_CASE("checkpoints come by themselves, and what was lost since the last one is a failure") {
  const temporary_folder folder;
  const std::string at = folder / "saved";
  for (const std::uint64_t failures : {0, 1, 2}) {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained fixture(context);
      const muster::train_options options{
          .epochs = 5, .checkpoint = at, .checkpoint_every = "auto", .keep = 1000, .log = nullptr};
      try {
        fixture.training.run(options, [&](muster::training_step& step) {
          fixture.one_step(step);
          if (failures < 2 && step.number() == 3 + failures) throw std::runtime_error("the user's own");
        });
        require(failures == 2, "the others do not come to the end");
      } catch (const std::runtime_error& thrown) {
        require(failures < 2 && std::string(thrown.what()) == "the user's own", thrown.what());
      }
      require(fixture.training.failures() == failures, "each start over counts");
    });
    const auto steps = saved_steps(at);
    REQUIRE(!steps.empty());
    CHECK(steps.front() == 1);  // the first check: the cost of a save is unknown before
    CHECK((steps.back() == 25) == (failures == 2));
  }
}

TEST_CASE("after each epoch the program may evaluate, with reports of its own") {
  as_ranks(3, [](muster::context& context, muster::group&) {
    trained fixture(context);
    muster::train_options options{.epochs = 2, .log = nullptr};
    int evaluations = 0;
    options.each_epoch = [&](muster::training_step& evaluation) {
      ++evaluations;
      evaluation.report("val_accuracy", evaluation.group().rank() == 0 ? 1.0 : 0.25,
                        evaluation.group().rank() == 0 ? 2.0 : 1.0);
    };
    fixture.run(options);
    require(evaluations == 2, "one an epoch");
    require(fixture.training.epochs()[1]["val_accuracy"] == 0.625, "the weighted mean");
  });
}

TEST_CASE("an epoch that a limit of steps cuts off is summed up too") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained fixture(context);
    fixture.run({.epochs = 3, .steps = 7, .log = nullptr});
    const auto& epochs = fixture.training.epochs();
    require(epochs.size() == 2 && epochs[0].samples == 40 && epochs[1].samples == 16, "one epoch and two steps");
  });
}

TEST_CASE("ranks with weights of their own have their mean after an epoch and at the end") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained fixture(context);
    const muster::sync_options apart{.mode = muster::parse_sync_mode("local-sgd:100")};
    muster::arena arena(context, {{"w", {2}}});
    muster::sgd optimizer(arena);
    muster::training training(context, apart, arena, optimizer, fixture.loader);
    const auto has_equal_weights = [&](muster::group& ranks) {
      const float mine = arena.parameter(0)[0];
      return muster::allreduce(ranks, mine, muster::min) == muster::allreduce(ranks, mine, muster::max);
    };
    int evaluations = 0;
    const auto evaluate = [&](muster::training_step& evaluation) {
      require(has_equal_weights(evaluation.group()), "the mean");
      ++evaluations;
    };
    training.run({.epochs = 2, .each_epoch = evaluate, .at_end = evaluate, .log = nullptr},
                 [&](muster::training_step& step) {
                   const auto batch = step.next(fixture.loader);
                   step.backward(batch, [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
                   step.update(optimizer, 1.0);
                 });
    require(evaluations == 3, "one an epoch, and one at the end");
    (void)training.evaluate(
        [&](muster::step& current) { require(!has_equal_weights(current.group()), "its own again"); });
  });
}

TEST_CASE("options of a training that cannot be used are refused") {
  as_ranks(1, [](muster::context& context, muster::group&) {
    trained fixture(context);
    CHECK_THROWS_WITH(fixture.run({.log = nullptr}),
                      "a training would not end (there is no limit); give {.epochs = N} or {.steps = N}");
    for (const char* every : {"", "0 epochs", "fortnight", "-1 steps", "2", "1.5 minutes", "steps 2"}) {
      CAPTURE(every);
      CHECK_THROWS_AS(fixture.run({.epochs = 1, .checkpoint_every = every, .log = nullptr}),
                      muster::configuration_error);
    }
    for (const char* metric : {"", "loss", "loss downwards", " up"}) {
      CAPTURE(metric);
      CHECK_THROWS_AS(fixture.run({.epochs = 1, .metric = metric, .log = nullptr}), muster::configuration_error);
    }
    CHECK(fixture.training.state().steps() == 0);
    CHECK_THROWS_WITH(fixture.run({.epochs = 1, .metric = "los down", .patience = 1, .log = nullptr}),
                      "the training waits for 'los' to improve (the epoch did not report it); report it, or name "
                      "another metric, such as \"loss down\"");
  });
}
