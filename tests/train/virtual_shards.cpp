// Virtual shards give the same bits for any number of ranks.
#include <muster/train/training.hpp>

#include <algorithm>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include "catch.hpp"
#include "trained.hpp"

using test::as_ranks;
using test::numbers;
using test::require;

TEST_CASE("with virtual shards a training has the same bits in any world") {
  const std::string shards = GENERATE("1", "5", "8");
  const std::string balance = GENERATE("equal", "speed");
  CAPTURE(shards, balance);
  std::vector<float> alone;
  for (const int ranks : {1, 2, 3, 4, 6}) {
    test::as_ranks(ranks,
                   [&](muster::context& context, muster::group& world) {
                     const auto data = test::numbers(61);
                     auto loader = data | muster::shuffle(3) | muster::batch(13);
                     muster::arena arena(context, {{"w", {3}}});
                     muster::sgd optimizer(arena, {.momentum = 0.9f});
                     muster::training training(context, arena, optimizer, loader);
                     std::vector<float> mean(2);
                     muster::random_stream pace(static_cast<std::uint64_t>(world.rank()), 1);
                     training.run({.epochs = 8, .log = nullptr}, [&](muster::training_step& step) {
                       const auto batch = step.next(loader);
                       if (balance == "speed") std::this_thread::sleep_for(std::chrono::microseconds(pace.below(900)));
                       std::vector<float> rows;
                       step.backward(batch, [&](const muster::minibatch& part, auto& backward) {
                         const auto out = backward.gradient(0);
                         std::ranges::fill(out, 0.0f);
                         for (const auto id : part.samples) {
                           out[0] += 0.1f * data.row(id)[0];
                           out[1] += 1.0f / data.row(id)[0];
                         }
                         rows.insert(rows.end(), {out[0], out[1]});
                         out[2] = mean[0];
                       });
                       step.mean_over_shards(rows, mean);
                       step.update(optimizer, 0.01);
                     });
                     test::require(training.epochs().back().samples == 61, "each sample once");
                     std::vector<float> found(arena.parameters().begin(), arena.parameters().end());
                     found.insert(found.end(), mean.begin(), mean.end());
                     if (world.size() == 1)
                       alone = found;
                     else
                       test::require(found == alone, "the bits of a rank that is alone");
                   },
                   {"--virtual-shards", shards, "--balance", balance});
  }
}

TEST_CASE("virtual shards refuse what depends on the number of ranks") {
  test::as_ranks(
      2,
      [](muster::context& context, muster::group&) {
        const auto data = test::numbers(8);
        auto loader = data | muster::batch(4);
        auto of_each = data | muster::batch(4, {.per_rank = true});
        muster::arena arena(context, {{"w", {2}}});
        muster::sgd optimizer(arena);
        const auto refusal = [](auto make) {
          try {
            make();
          } catch (const muster::configuration_error& e) {
            return std::string(e.what());
          }
          return std::string("nothing is refused");
        };
        test::require(
            refusal([&] { muster::training(context, arena, optimizer, of_each); }) ==
                "batches of each rank cannot be cut into virtual shards (the global batch depends on the number of "
                "ranks); give the size of the global batch",
            "batches of each rank");
        muster::training training(context, arena, optimizer, loader);
        test::require(refusal([&] {
                        training.run({.steps = 1, .log = nullptr}, [&](muster::training_step& step) {
                          step.backward(step.next(loader).split(2), [](const auto&, auto&) {});
                        });
                      }) ==
                          "micro-batches cannot be used with virtual shards (each shard is a separate pass); give "
                          "backward() the whole batch, and more shards",
                      "micro-batches");
      },
      {"--virtual-shards", "4"});
}

TEST_CASE("a mean over virtual shards is refused where there are none") {
  test::as_ranks(1, [](muster::context& context, muster::group&) {
    test::trained fixture(context);
    std::string refusal;
    fixture.training.run({.steps = 1, .log = nullptr}, [&](muster::training_step& step) {
      fixture.one_step(step);
      std::vector<float> means(2);
      try {
        step.mean_over_shards({}, means);
      } catch (const muster::configuration_error& e) {
        refusal = e.what();
      }
    });
    test::require(refusal ==
                      "a mean over virtual shards cannot be computed from 0 values (this rank has 0 of the 0 shards, "
                      "with 2 values each); use virtual shards, and give a row for each",
                  "a mean over no shards");
  });
}
