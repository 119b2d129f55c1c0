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
#include <muster/data/dataset_builder.hpp>
#include <muster/train/checkpoint.hpp>
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
void as_ranks(int ranks, Body body, const std::vector<std::string>& flags = {}) {
  std::vector<std::string> words = {"app", "--ranks", std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  test::command_line line(words);
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

TEST_CASE("an update of the user's own counts when its step commits, and calls no collective") {
  const std::string mode = GENERATE("allreduce", "allreduce-weights");
  CAPTURE(mode);
  as_ranks(2, [&](muster::context& context, muster::group&) {
    trained here(context);
    muster::arena arena(context, {{"w", {2}}, {"other", {3}}});
    const muster::sync_options how{.mode = muster::parse_sync_mode(mode)};
    muster::training training(context, how, arena, here.loader);
    int calls = 0;
    bool collective = false;
    const auto step_of = [&](muster::training_step& step) {
      const auto batch = step.next(here.loader);
      step.backward(batch, [&](const auto& part, auto& to) { here.gradient(part, to); });
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
    const auto throws = [&](const char* what) {
      try {
        training.run({.epochs = 1, .log = nullptr}, step_of);
      } catch (const std::exception& thrown) {
        require(std::string(thrown.what()).find(what) != std::string::npos, thrown.what());
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
  const std::string every = GENERATE("epoch", "2 epochs", "3 steps", "10 minutes", "auto");
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

TEST_CASE("checkpoints come by themselves, and what was lost since the last one is a failure") {
  const temporary_folder folder;
  const std::string at = folder / "saved";
  for (const std::uint64_t failures : {0, 1, 2}) {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained here(context);
      const muster::train_options options{
          .epochs = 5, .checkpoint = at, .checkpoint_every = "auto", .keep = 1000, .log = nullptr};
      try {
        here.training.run(options, [&](muster::training_step& step) {
          here.one_step(step);
          if (failures < 2 && step.number() == 3 + failures) throw std::runtime_error("the user's own");
        });
        require(failures == 2, "the others do not come to the end");
      } catch (const std::runtime_error& thrown) {
        require(failures < 2 && std::string(thrown.what()) == "the user's own", thrown.what());
      }
      require(here.training.failures() == failures, "each start over counts");
    });
    const auto steps = muster::checkpoint(at).steps();
    REQUIRE(!steps.empty());
    CHECK(steps.front() == 1);  // the first look: no cost is known before
    CHECK((steps.back() == 25) == (failures == 2));
  }
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

TEST_CASE("an epoch that a limit of steps cuts off is summed up too") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained here(context);
    here.run({.epochs = 3, .steps = 7, .log = nullptr});
    const auto& epochs = here.training.epochs();
    require(epochs.size() == 2 && epochs[0].samples == 40 && epochs[1].samples == 16, "one epoch and two steps");
  });
}

namespace {

// After epoch n it reports the n-th value, and the last one from there on.
void run_with(trained& here, muster::train_options options, const std::vector<double>& values) {
  options.each_epoch = [&](muster::training_step& now) {
    now.report("val_accuracy", values[std::min(here.training.epochs().size(), values.size() - 1)]);
  };
  here.run(options);
}

}  // namespace

TEST_CASE("a training ends when it has trained for so long, and the epoch that this cuts off is summed up") {
  std::mutex mutex;
  std::vector<std::vector<muster::epoch_summary>> all;
  for (const double limit : {1e-9, 1e9}) {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained one(context);
      one.run({.epochs = 3, .max_seconds = limit, .log = nullptr});
      const std::lock_guard lock(mutex);
      all.push_back(one.training.epochs());
    });
  }
  REQUIRE(all.size() == 4);
  for (const std::size_t k : {0u, 1u}) {  // after the first look, which is after the first step
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
      trained here(context);
      std::FILE* const log = std::tmpfile();
      const auto before = muster::checkpoint(at).steps();
      muster::barrier(world);
      run_with(here,
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
      const std::string said(text, std::fread(text, 1, sizeof text, log));
      std::fclose(log);
      muster::barrier(world);
      require(here.training.epochs().size() == (patience != 0 ? 4 : 7), "two epochs after the best one, or all");
      if (patience != 0)
        require(muster::checkpoint(at).steps() == std::vector<std::uint64_t>{10, 20}, "the best, and the last");
      if (world.rank() != 0) return;
      if (patience == 0)
        require(said.starts_with("resumes after step 20, in epoch 4\nepoch 5: "), "it goes on without patience");
      else if (before.empty())
        require(said.ends_with("ends: val_accuracy was best in epoch 2\n"), "it says why it ends");
      else
        require(said.starts_with("nothing to do: "), "it has ended");
    });
  }
}

TEST_CASE("a training ends where the program says, and its lines are the program's") {
  as_ranks(3, [](muster::context& context, muster::group& world) {
    trained here(context);
    std::vector<std::uint64_t> lines;
    int meetings = 0;
    here.run({.epochs = 9,
              .stop = [](const auto& epoch) { return epoch["value"] > 20 && epoch.epoch == 2; },
              .each_group =
                  [&](muster::group& ranks, bool joined) {
                    require(ranks.size() == 3 && !joined, "all ranks, from the start");
                    ++meetings;
                  },
              .print = [&](const auto& epoch) { lines.push_back(epoch.epoch); }});
    require(here.training.epochs().size() == 2, "two epochs");
    require(meetings == 1, "they met once");
    require(lines == (world.rank() == 0 ? std::vector<std::uint64_t>{1, 2} : std::vector<std::uint64_t>{}), "rank 0's");
  });
}

TEST_CASE("a schedule among the owners observes the metric, and what it has seen stays") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained here(context);
    auto rate = muster::parse_schedule("plateau:8,factor=0.5,patience=0,better=higher");
    muster::arena arena(context, {{"w", {2}}});
    muster::sgd optimizer(arena);
    muster::training training(context, arena, optimizer, here.loader, rate);
    std::vector<double> rates;
    training.run({.epochs = 4,
                  .each_epoch = [](muster::training_step& now) { now.report("val_accuracy", 0.5); },
                  .log = nullptr},
                 [&](muster::training_step& step) {
                   (void)step.next(here.loader);
                   if (step.number() % 5 == 0) rates.push_back(rate(step));
                 });
    require(rates == std::vector<double>{8, 8, 4, 2}, "it falls with each epoch that is no better");
  });
}

TEST_CASE("ranks with weights of their own have their mean after an epoch") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained here(context);
    const muster::sync_options apart{.mode = muster::parse_sync_mode("local-sgd:100")};
    muster::arena arena(context, {{"w", {2}}});
    muster::sgd optimizer(arena);
    muster::training training(context, apart, arena, optimizer, here.loader);
    const auto same = [&](muster::group& ranks) {
      const float mine = arena.parameter(0)[0];
      return muster::allreduce(ranks, mine, muster::min) == muster::allreduce(ranks, mine, muster::max);
    };
    int evaluations = 0;
    training.run({.epochs = 2,
                  .each_epoch =
                      [&](muster::training_step& now) {
                        require(same(now.group()), "the mean");
                        ++evaluations;
                      },
                  .log = nullptr},
                 [&](muster::training_step& step) {
                   const auto batch = step.next(here.loader);
                   step.backward(batch, [&](const auto& part, auto& to) { here.gradient(part, to); });
                   step.update(optimizer, 1.0);
                 });
    require(evaluations == 2, "one an epoch");
    (void)training.evaluate([&](muster::step& now) { require(!same(now.group()), "its own again"); });
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
    for (const char* metric : {"", "loss", "loss downwards", " up"}) {
      CAPTURE(metric);
      CHECK_THROWS_AS(here.run({.epochs = 1, .metric = metric, .log = nullptr}), muster::configuration_error);
    }
    CHECK(here.training.state().steps() == 0);
    CHECK_THROWS_WITH(here.run({.epochs = 1, .metric = "los down", .patience = 1, .log = nullptr}),
                      "the training waits for 'los' to become better (the epoch did not report it); report it, or "
                      "name another metric, such as \"loss down\"");
  });
}

namespace {

const std::vector<std::string> in_step = {"--mode", "ps", "--servers", "1", "--consistency", "bulk"};

std::vector<float> values_of(const muster::arena& arena) {
  const auto values = arena.parameters();
  return {values.begin(), values.end()};
}

}  // namespace

TEST_CASE("workers in step with servers learn what ranks learn that reduce gradients") {
  const int parts = GENERATE(1, 2);
  const int workers = GENERATE(1, 2, 3);
  std::mutex mutex;
  std::vector<float> reduced, served;
  double reduced_mean = 0, final_value = 0;
  const auto body = [&](std::vector<float>& to, bool on_servers) {
    return [&, on_servers, parts](muster::context& context, muster::group&) {
      trained here(context);
      int ended = 0;
      here.training.run(
          {.epochs = 2,
           .at_end =
               [&](muster::training_step& step) {
                 ++ended;
                 if (step.group().rank() != 0) return;
                 const std::lock_guard lock(mutex);
                 to = values_of(here.arena);
                 (on_servers ? final_value : reduced_mean) = here.training.epochs().back()["value"];
               },
           .log = nullptr},
          [&](muster::training_step& step) {
            const auto batch = step.next(here.loader);
            step.backward(batch.split(parts), [&](const auto& part, auto& to_pass) {
              to_pass.divided_by(static_cast<double>(batch.global_size));
              here.gradient(part, to_pass);
              if (part.samples.data() + part.samples.size() != batch.samples.data() + batch.samples.size()) return;
              for (float& value : to_pass.gradient(0)) value /= static_cast<float>(batch.global_size);
            });
            step.update(here.optimizer, 0.5);
            const auto count = static_cast<double>(batch.samples.size());
            step.report("value", 20.5, count);
          });
      require(ended == (here.training.is_root() || !on_servers ? 1 : 0), "the end once, at the first worker");
    };
  };
  as_ranks(workers, body(reduced, false));
  as_ranks(workers + 1, body(served, true), in_step);
  REQUIRE(reduced.size() == served.size());
  for (std::size_t i = 0; i < reduced.size(); ++i) CHECK(served[i] == Approx(reduced[i]).epsilon(1e-5));
  CHECK(final_value == reduced_mean);
}

TEST_CASE("a sparse model on servers has the elements alone that steps name") {
  constexpr std::size_t features = 100000;
  std::mutex mutex;
  std::vector<float> learnt;
  as_ranks(
      3,
      [&](muster::context& context, muster::group&) {
        const auto data = numbers(40);
        auto loader = data | muster::shuffle(3) | muster::batch(8);
        muster::arena arena(context, {{"w", {features}}});
        muster::sgd optimizer(arena);
        auto how = muster::training::sync_of_job(context);
        how.sparse = true;
        muster::training training(context, how, arena, optimizer, loader);
        std::vector<std::uint64_t> elements;
        const auto elements_of = [&](std::span<const muster::sample_id> samples) {
          elements.clear();
          for (const auto id : samples) elements.push_back(id * 1000 + 7);
          std::sort(elements.begin(), elements.end());
          return std::span<const std::uint64_t>(elements);
        };
        training.run({.epochs = 3,
                      .at_end =
                          [&](muster::training_step& step) {
                            std::vector<muster::sample_id> all(40);
                            for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
                            step.pull(elements_of(all));
                            const std::lock_guard lock(mutex);
                            learnt = values_of(arena);
                          },
                      .log = nullptr},
                     [&](muster::training_step& step) {
                       const auto batch = step.next(loader);
                       step.pull(elements_of(batch.samples));
                       step.backward(batch, [&](const auto&, auto& to) {
                         to.divided_by(1.0 * static_cast<double>(batch.global_size));
                         const auto out = to.gradient(0);
                         for (const auto element : elements) {
                           require(out[element] == 0.0f, "gradients begin as zeros");
                           out[element] += 1.0f;
                         }
                       });
                       step.update(optimizer, 0.25);
                     });
      },
      in_step);
  REQUIRE(learnt.size() >= features);
  for (std::size_t i = 0; i < features; ++i) {
    const bool named = i % 1000 == 7 && i / 1000 < 40;
    if (learnt[i] != (named ? -0.75f : 0.0f)) FAIL("element " << i << " is " << learnt[i]);
  }
}

TEST_CASE("a training on servers resumes from its tables, and says when it has ended") {
  const temporary_folder folder;
  const auto train = [&](std::uint64_t epochs) {
    std::pair<std::uint64_t, std::vector<float>> result;
    as_ranks(
        3,
        [&](muster::context& context, muster::group&) {
          trained here(context);
          const auto taken = std::make_shared<std::uint64_t>(0);
          here.training.run({.epochs = epochs,
                             .checkpoint = folder / "saved",
                             .at_end =
                                 [&](muster::training_step&) {
                                   result = {*taken, values_of(here.arena)};
                                 },
                             .log = nullptr},
                            [&](muster::training_step& step) {
                              here.one_step(step);
                              ++*taken;
                            });
        },
        in_step);
    return result;
  };
  CHECK(train(2).first == 10);
  const auto resumed = train(4);
  CHECK(resumed.first == 10);
  CHECK(resumed.second.at(1) == Approx(-20.0f));  // a mean gradient of 1 in each of twenty steps
  CHECK(train(4).first == 0);
}

TEST_CASE("what servers cannot do is refused") {
  // What the worker of such a job is told; its server ends with it.
  const auto told = [](const auto& made) {
    std::string why;
    as_ranks(
        2,
        [&](muster::context& context, muster::group& world) {
          try {
            made(context);
          } catch (const muster::error& refused) {
            if (world.rank() == 0) why = refused.what();
          }
        },
        in_step);
    return why;
  };
  const auto run = [&](const muster::train_options& options, auto step_function) {
    return told([&](muster::context& context) {
      trained here(context);
      here.training.run(options, [&](muster::training_step& step) { step_function(here, step); });
    });
  };
  const auto plain = [](trained& here, muster::training_step& step) { here.one_step(step); };
  CHECK_THAT(run({.epochs = 1, .max_seconds = 1, .log = nullptr}, plain),
             contains("option max_seconds cannot be used in mode ps"));
  CHECK_THAT(run({.epochs = 1, .patience = 1, .log = nullptr}, plain), contains("option patience cannot"));
  CHECK_THAT(run({.epochs = 1, .stop = [](const auto&) { return false; }, .log = nullptr}, plain),
             contains("option stop cannot"));
  CHECK_THAT(run({.epochs = 1, .checkpoint = "saved", .checkpoint_every = "auto", .log = nullptr}, plain),
             contains("cannot be written every 'auto'"));
  CHECK_THAT(run({.epochs = 1, .log = nullptr}, [](trained&, muster::training_step& step) { step.update([] {}); }),
             contains("a function cannot update parameters in mode ps"));
  CHECK_THAT(run({.epochs = 1, .log = nullptr},
                 [](trained& here, muster::training_step& step) {
                   here.one_step(step);
                   step.update(here.optimizer, 1.0);
                 }),
             contains("a second update in a step"));
  CHECK_THAT(run({.epochs = 1, .log = nullptr},
                 [](trained& here, muster::training_step& step) { step.update(here.optimizer, -1.0); }),
             contains("learning rate cannot be -1"));

  // By a training of its own beside no loop.
  const auto made_with = [&](const char* optimizer, const char* schedule) {
    return told([&](muster::context& context) {
      const auto data = numbers(8);
      auto loader = data | muster::shuffle(3) | muster::batch(8);
      muster::arena arena(context, {{"w", {2}}});
      if (optimizer == nullptr) {
        muster::training(context, arena, loader);
        return;
      }
      auto by = muster::make_optimizer(arena, optimizer);
      auto rate = muster::parse_schedule(schedule);
      muster::training training(context, arena, by, loader, rate);
      training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) { (void)step.next(loader); });
    });
  };
  CHECK(made_with("adam,decay=1e-4", "constant:0.1").empty());
  CHECK_THAT(made_with(nullptr, ""), contains("mode ps needs an optimizer that servers can apply"));
  CHECK_THAT(made_with("lars:0.9", "constant:0.1"), contains("servers cannot step by lars"));
  CHECK_THAT(made_with("adam,beta1=0.8", "constant:0.1"), contains("beta1 cannot be 0.8 on servers"));
  CHECK_THAT(made_with("sgd,decay=0.1,decay-of=weights", "constant:0.1"), contains("cannot decay some tensors alone"));
  CHECK_THAT(made_with("sgd", "plateau:0.1,warmup=2"), contains("a plateau schedule cannot be used in mode ps"));
  CHECK(made_with("sgd", "constant:0.1,warmup=2").empty());
}
