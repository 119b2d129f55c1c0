// State that a step changes and no owner has, gradients that are never written, and replicas that diverge.
#include <muster/train/training.hpp>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include "../data/files.hpp"
#include "catch.hpp"
#include "heard_log.hpp"
#include "trained.hpp"

using test::as_ranks;
using test::require;
using test::trained;

namespace {

// Performs a step of an optimizer outside muster, with a momentum of 0.5.
void foreign_step(muster::arena& values, std::vector<float>& velocity) {
  for (std::size_t i = 0; i < 2; ++i) {
    velocity[i] = 0.5f * velocity[i] + values.gradient(0)[i];
    values.parameter(0)[i] -= velocity[i];
  }
}

struct user_training {
  template <class... Owners>
  explicit user_training(muster::context& context, Owners&&... owners)
      : fixture(context),
        arena(context, {{"w", {2}}}),
        training(context, arena, fixture.loader, std::forward<Owners>(owners)...) {}
  void backward(muster::training_step& step) {
    step.backward(step.next(fixture.loader),
                  [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
  }

  trained fixture;
  muster::arena arena;
  muster::training training;
};

}  // namespace

TEST_CASE("an update that keeps something that no owner has is refused where steps are saved") {
  const temporary_folder folder;
  const bool owned = GENERATE(false, true);
  const bool saved = GENERATE(false, true);
  CAPTURE(owned, saved);
  const auto run = [&](bool uses_gradients_up) {
    std::vector<float> ended;
    as_ranks(2, [&](muster::context& context, muster::group& world) {
      std::vector<float> velocity(2);
      const std::string at = folder / (owned ? "owned" : "foreign");
      const auto train = [&](user_training& user_fixture) {
        user_fixture.training.run(
            {.epochs = 2, .checkpoint = saved ? at : "", .log = nullptr}, [&](muster::training_step& step) {
              user_fixture.backward(step);
              step.update([&] {
                if (!uses_gradients_up) return foreign_step(user_fixture.arena, velocity);
                for (std::size_t i = 0; i < 2; ++i)
                  user_fixture.arena.parameter(0)[i] -= std::exchange(user_fixture.arena.gradient(0)[i], 0.0f);
              });
            });
        if (world.rank() == 0)
          ended.assign(user_fixture.arena.parameters().begin(), user_fixture.arena.parameters().end());
      };
      if (owned) {
        user_training user_fixture(context, muster::restored_values{"velocity", std::span(velocity)});
        return train(user_fixture);
      }
      user_training user_fixture(context);
      train(user_fixture);
    });
    return ended;
  };
  if (saved && !owned) {
    CHECK_THROWS_WITH(run(false),
                      contains("an update gives different parameters when it is called again with the same"));
    CHECK_NOTHROW(run(true));  // gradients are restored, too
    return;
  }
  const auto ended = run(false);
  CHECK(ended[1] == -18.001953125f);  // ten steps of a gradient of 1: 1 + 1.5 + 1.75 + ...
}

TEST_CASE("an optimizer that keeps something and that the training was not given is refused where steps are saved") {
  const temporary_folder folder;
  const bool saved = GENERATE(false, true);
  const bool is_passed = GENERATE(false, true);
  CAPTURE(saved, is_passed);
  const auto run = [&] {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained fixture(context);
      muster::arena arena(context, {{"w", {2}}});
      muster::adam first(arena), second(arena);
      const auto train = [&](muster::training& training) {
        training.run({.epochs = 1, .checkpoint = saved ? folder / "saved" : "", .log = nullptr},
                     [&](muster::training_step& step) {
                       step.backward(step.next(fixture.loader),
                                     [&](const auto& part, auto& backward) { fixture.gradient(part, backward); });
                       step.update(is_passed ? first : second, 0.1);
                     });
      };
      muster::training training(context, arena, first, fixture.loader);
      train(training);
    });
  };
  if (saved && !is_passed)
    CHECK_THROWS_WITH(run(), contains("its 'steps of adam' would be lost"));
  else
    CHECK_NOTHROW(run());
}

TEST_CASE("a rank that has samples and writes no gradient ends the training at all ranks") {
  const int ranks = GENERATE(1, 2);
  const std::string mode = GENERATE("allreduce", "local-sgd:2");
  CAPTURE(ranks, mode);
  std::mutex mutex;
  std::vector<std::string> ends;
  CHECK_THROWS_WITH(as_ranks(ranks,
                             [&](muster::context& context, muster::group& world) {
                               trained fixture(context);
                               try {
                                 fixture.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
                                   step.backward(step.next(fixture.loader), [&](const auto& part, auto& backward) {
                                     if (world.rank() != ranks - 1) fixture.gradient(part, backward);
                                   });
                                   step.update(fixture.optimizer, 1.0);
                                 });
                               } catch (const std::exception& thrown) {
                                 const std::lock_guard lock(mutex);
                                 ends.emplace_back(thrown.what());
                                 throw;
                               }
                             },
                             {"--mode", mode}),
                    contains("wrote no gradient"));
  REQUIRE(ends.size() == static_cast<std::size_t>(ranks));
  for (const auto& end : ends) CHECK_THAT(end, contains("wrote no gradient"));
}

TEST_CASE("gradients that a model adds to cleared ones are those of the pass, however it found their place") {
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained fixture(context);
    const auto bound = fixture.arena.gradient(0);  // bound once, like `.grad` of LibTorch
    fixture.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(fixture.loader), [&](const auto& part, auto& pass) {
        pass.clear();
        for ([[maybe_unused]] const auto id : part.samples) bound[1] += 1;
      });
      step.update(fixture.optimizer, 1.0);
    });
    require(fixture.arena.parameter(0)[1] == -5.0f, "a mean gradient of 1 in each of five steps");
  });
}

TEST_CASE("gradients of zeros in the first step are told, once") {
  const test::heard_log captured;
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained fixture(context);
    fixture.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(fixture.loader), [&](const auto&, auto& pass) { pass.clear(); });
      step.update(fixture.optimizer, 1.0);
    });
  });
  const std::string line = "all gradients of the first step are 0";
  const auto at = captured.text().find(line);
  CHECK(at != std::string::npos);
  CHECK(captured.text().find(line, at + 1) == std::string::npos);
}

TEST_CASE("gradients of zeros at one rank are told by that rank") {
  const test::heard_log captured;
  const std::string mode = GENERATE("allreduce", "local-sgd:2");
  as_ranks(2,
           [](muster::context& context, muster::group& world) {
             trained fixture(context);
             fixture.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
               step.backward(step.next(fixture.loader), [&](const auto& part, auto& pass) {
                 pass.clear();
                 if (world.rank() == 0) fixture.gradient(part, pass);
               });
               step.update(fixture.optimizer, 1.0);
             });
           },
           {"--mode", mode});
  const std::string line = "all gradients of this rank in the first step are 0";
  const auto text = captured.text();
  CHECK(text.find(line) != std::string::npos);
  CHECK(text.find(line) == text.rfind(line));
}

TEST_CASE("replicas that have parted end the training with the epoch, and are not saved") {
  const temporary_folder folder;
  const std::string every = GENERATE("epoch", "2 steps", "");
  CAPTURE(every);
  std::mutex mutex;
  std::vector<std::string> ends;
  CHECK_THROWS_AS(as_ranks(3,
                           [&](muster::context& context, muster::group& world) {
                             trained fixture(context);
                             muster::train_options options{.epochs = 1, .log = nullptr};
                             if (!every.empty()) {
                               options.checkpoint = folder / "saved";
                               options.checkpoint_every = every;
                             }
                             try {
                               fixture.training.run(options, [&](muster::training_step& step) {
                                 step.backward(step.next(fixture.loader), [&](const auto& part, auto& backward) {
                                   fixture.gradient(part, backward);
                                 });
                                 step.update(fixture.optimizer, world.rank() == 2 ? 0.01 : 1.0);
                               });
                             } catch (const muster::mismatch_error& thrown) {
                               const std::lock_guard lock(mutex);
                               ends.emplace_back(thrown.what());
                               throw;
                             }
                           }),
                  muster::mismatch_error);
  REQUIRE(ends.size() == 3);  // no rank detects the end of another rank before it has the reason
  for (const auto& end : ends) CHECK_THAT(end, contains("'parameters' of ranks 0 and 2 differ after step "));
}
