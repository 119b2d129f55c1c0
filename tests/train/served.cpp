// Trainings on servers.
#include <muster/train/training.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include <muster/core/error.hpp>

#include "../data/files.hpp"
#include "catch.hpp"
#include "trained.hpp"

using test::as_ranks;
using test::numbers;
using test::require;
using test::trained;

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
  const auto body = [&](std::vector<float>& parameters, bool on_servers) {
    return [&, on_servers, parts](muster::context& context, muster::group&) {
      trained fixture(context);
      int ended = 0;
      fixture.training.run(
          {.epochs = 2,
           .at_end =
               [&](muster::training_step& step) {
                 ++ended;
                 if (step.group().rank() != 0) return;
                 const std::lock_guard lock(mutex);
                 parameters = values_of(fixture.arena);
                 (on_servers ? final_value : reduced_mean) = fixture.training.epochs().back()["value"];
               },
           .log = nullptr},
          [&](muster::training_step& step) {
            const auto batch = step.next(fixture.loader);
            step.backward(batch.split(parts), [&](const auto& part, auto& to_pass) {
              to_pass.divided_by(static_cast<double>(batch.global_size));
              fixture.gradient(part, to_pass);
              if (part.samples.data() + part.samples.size() != batch.samples.data() + batch.samples.size()) return;
              for (float& value : to_pass.gradient(0)) value /= static_cast<float>(batch.global_size);
            });
            step.update(fixture.optimizer, 0.5);
            const auto count = static_cast<double>(batch.samples.size());
            step.report("value", 20.5, count);
          });
      require(ended == (fixture.training.is_root() || !on_servers ? 1 : 0), "the end once, at the first worker");
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
        auto options = muster::training::sync_of_job(context);
        options.sparse = true;
        muster::training training(context, options, arena, optimizer, loader);
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
                       step.backward(batch, [&](const auto&, auto& backward) {
                         backward.divided_by(1.0 * static_cast<double>(batch.global_size));
                         const auto out = backward.gradient(0);
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
          trained fixture(context);
          const auto steps_taken = std::make_shared<std::uint64_t>(0);
          fixture.training.run({.epochs = epochs,
                                .checkpoint = folder / "saved",
                                .at_end =
                                    [&](muster::training_step&) {
                                      result = {*steps_taken, values_of(fixture.arena)};
                                    },
                                .log = nullptr},
                               [&](muster::training_step& step) {
                                 fixture.one_step(step);
                                 ++*steps_taken;
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

TEST_CASE("a worker that evaluates for longer than the servers wait for a word of it goes on") {
  std::atomic<int> evaluated = 0;
  as_ranks(3,
           [&](muster::context& context, muster::group&) {
             trained fixture(context);
             const auto evaluate = [&](muster::training_step&) {
               std::this_thread::sleep_for(std::chrono::milliseconds(2200));
               ++evaluated;
             };
             fixture.training.run({.epochs = 2, .each_epoch = evaluate, .at_end = evaluate, .log = nullptr},
                                  [&](muster::training_step& step) { fixture.one_step(step); });
           },
           {"--mode", "ps", "--servers", "1", "--timeout", "1.5"});
  CHECK(evaluated == 3);
}

TEST_CASE("a worker that has other data than the first is refused, with what differs") {
  const auto run = [] {
    as_ranks(3,
             [&](muster::context& context, muster::group& world) {
               const auto samples = numbers(40);
               auto loader = samples | muster::shuffle(world.rank() == 1 ? 4 : 3) | muster::batch(8);
               muster::arena arena(context, {{"w", {2}}});
               muster::sgd optimizer(arena);
               muster::training training(context, arena, optimizer, loader);
               training.run({.epochs = 40, .log = nullptr},
                            [&](muster::training_step& step) { (void)step.next(loader); });
             },
             {"--mode", "ps", "--servers", "1", "--consistency", "async"});
  };
  CHECK_THROWS_WITH(run(), contains("the seed of the data is 3 at rank 0 and 4 at rank 1"));
}

TEST_CASE("what servers cannot do is refused") {
  // Returns the error of the worker in such a job; its server ends with the worker.
  const auto error_of = [](const auto& body) {
    std::string why;
    as_ranks(
        2,
        [&](muster::context& context, muster::group& world) {
          try {
            body(context);
          } catch (const muster::error& refused) {
            if (world.rank() == 0) why = refused.what();
          }
        },
        in_step);
    return why;
  };
  const auto run = [&](const muster::train_options& options, auto step_function) {
    return error_of([&](muster::context& context) {
      trained fixture(context);
      fixture.training.run(options, [&](muster::training_step& step) { step_function(fixture, step); });
    });
  };
  const auto plain = [](trained& fixture, muster::training_step& step) { fixture.one_step(step); };
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
                 [](trained& fixture, muster::training_step& step) {
                   fixture.one_step(step);
                   step.update(fixture.optimizer, 1.0);
                 }),
             contains("a second update in a step"));
  CHECK_THAT(run({.epochs = 1, .log = nullptr},
                 [](trained& fixture, muster::training_step& step) { step.update(fixture.optimizer, -1.0); }),
             contains("learning rate cannot be -1"));

  // Runs a separate training without a loop.
  const auto made_with = [&](const char* optimizer, const char* schedule) {
    return error_of([&](muster::context& context) {
      const auto data = numbers(8);
      auto loader = data | muster::shuffle(3) | muster::batch(8);
      muster::arena arena(context, {{"w", {2}}});
      if (optimizer == nullptr) {
        muster::training(context, arena, loader);
        return;
      }
      auto updater = muster::make_optimizer(arena, optimizer);
      auto rate = muster::parse_schedule(schedule);
      muster::training training(context, arena, updater, loader, rate);
      training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) { (void)step.next(loader); });
    });
  };
  CHECK(made_with("adam,decay=1e-4", "constant:0.1").empty());
  CHECK_THAT(made_with(nullptr, ""), contains("mode ps needs an optimizer that servers can apply"));
  CHECK_THAT(made_with("lars:0.9", "constant:0.1"), contains("servers cannot apply lars"));
  CHECK_THAT(made_with("adam,beta1=0.8", "constant:0.1"), contains("beta1 cannot be 0.8 on servers"));
  CHECK_THAT(made_with("sgd,decay=0.1,decay-of=weights", "constant:0.1"), contains("cannot decay some tensors alone"));
  CHECK_THAT(made_with("sgd", "plateau:0.1,warmup=2"), contains("a plateau schedule cannot be used in mode ps"));
  CHECK(made_with("sgd", "constant:0.1,warmup=2").empty());
}
