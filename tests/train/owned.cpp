// What a step changes and no owner has, gradients that never arrive, and replicas that part.
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

// A step of an optimizer that is not muster's: of a momentum of 0.5.
void foreign_step(muster::arena& of, std::vector<float>& velocity) {
  for (std::size_t i = 0; i < 2; ++i) {
    velocity[i] = 0.5f * velocity[i] + of.gradient(0)[i];
    of.parameter(0)[i] -= velocity[i];
  }
}

struct user_training {
  template <class... Owners>
  explicit user_training(muster::context& context, Owners&&... owners)
      : of(context),
        arena(context, {{"w", {2}}}),
        training(context, arena, of.loader, std::forward<Owners>(owners)...) {}
  void backward(muster::training_step& step) {
    step.backward(step.next(of.loader), [&](const auto& part, auto& to) { of.gradient(part, to); });
  }

  trained of;
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
      const auto train = [&](user_training& here) {
        here.training.run({.epochs = 2, .checkpoint = saved ? at : "", .log = nullptr},
                          [&](muster::training_step& step) {
                            here.backward(step);
                            step.update([&] {
                              if (!uses_gradients_up) return foreign_step(here.arena, velocity);
                              for (std::size_t i = 0; i < 2; ++i)
                                here.arena.parameter(0)[i] -= std::exchange(here.arena.gradient(0)[i], 0.0f);
                            });
                          });
        if (world.rank() == 0) ended.assign(here.arena.parameters().begin(), here.arena.parameters().end());
      };
      if (owned) {
        user_training here(context, muster::restored_values{"velocity", std::span(velocity)});
        return train(here);
      }
      user_training here(context);
      train(here);
    });
    return ended;
  };
  if (saved && !owned) {
    CHECK_THROWS_WITH(run(false), contains("an update gives other parameters when it is called again with the same"));
    CHECK_NOTHROW(run(true));  // gradients are put back, too
    return;
  }
  const auto ended = run(false);
  CHECK(ended[1] == -18.001953125f);  // ten steps of a gradient of 1: 1 + 1.5 + 1.75 + ...
}

TEST_CASE("an optimizer that keeps something and that the training was not given is refused where steps are saved") {
  const temporary_folder folder;
  const bool saved = GENERATE(false, true);
  const bool given = GENERATE(false, true);
  CAPTURE(saved, given);
  const auto run = [&] {
    as_ranks(2, [&](muster::context& context, muster::group&) {
      trained of(context);
      muster::arena arena(context, {{"w", {2}}});
      muster::adam first(arena), second(arena);
      const auto train = [&](muster::training& training) {
        training.run({.epochs = 1, .checkpoint = saved ? folder / "saved" : "", .log = nullptr},
                     [&](muster::training_step& step) {
                       step.backward(step.next(of.loader), [&](const auto& part, auto& to) { of.gradient(part, to); });
                       step.update(given ? first : second, 0.1);
                     });
      };
      muster::training training(context, arena, first, of.loader);
      train(training);
    });
  };
  if (saved && !given)
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
                               trained here(context);
                               try {
                                 here.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
                                   step.backward(step.next(here.loader), [&](const auto& part, auto& to) {
                                     if (world.rank() != ranks - 1) here.gradient(part, to);
                                   });
                                   step.update(here.optimizer, 1.0);
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
    trained here(context);
    const auto bound = here.arena.gradient(0);  // once, as `.grad` of LibTorch is
    here.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(here.loader), [&](const auto& part, auto& pass) {
        pass.clear();
        for ([[maybe_unused]] const auto id : part.samples) bound[1] += 1;
      });
      step.update(here.optimizer, 1.0);
    });
    require(here.arena.parameter(0)[1] == -5.0f, "a mean gradient of 1 in each of five steps");
  });
}

TEST_CASE("gradients of zeros in the first step are told, once") {
  const test::heard_log heard;
  as_ranks(2, [](muster::context& context, muster::group&) {
    trained here(context);
    here.training.run({.epochs = 1, .log = nullptr}, [&](muster::training_step& step) {
      step.backward(step.next(here.loader), [&](const auto&, auto& pass) { pass.clear(); });
      step.update(here.optimizer, 1.0);
    });
  });
  const std::string line = "all gradients of the first step are 0";
  const auto at = heard.text().find(line);
  CHECK(at != std::string::npos);
  CHECK(heard.text().find(line, at + 1) == std::string::npos);
}

TEST_CASE("replicas that have parted end the training with the epoch, and are not saved") {
  const temporary_folder folder;
  const std::string every = GENERATE("epoch", "2 steps", "");
  CAPTURE(every);
  std::mutex mutex;
  std::vector<std::string> ends;
  CHECK_THROWS_AS(as_ranks(3,
                           [&](muster::context& context, muster::group& world) {
                             trained here(context);
                             muster::train_options options{.epochs = 1, .log = nullptr};
                             if (!every.empty()) {
                               options.checkpoint = folder / "saved";
                               options.checkpoint_every = every;
                             }
                             try {
                               here.training.run(options, [&](muster::training_step& step) {
                                 step.backward(step.next(here.loader),
                                               [&](const auto& part, auto& to) { here.gradient(part, to); });
                                 step.update(here.optimizer, world.rank() == 2 ? 0.01 : 1.0);
                               });
                             } catch (const muster::mismatch_error& thrown) {
                               const std::lock_guard lock(mutex);
                               ends.emplace_back(thrown.what());
                               throw;
                             }
                           }),
                  muster::mismatch_error);
  REQUIRE(ends.size() == 3);  // none hears of another rank's end before it knows the reason
  for (const auto& end : ends) CHECK_THAT(end, contains("'parameters' of ranks 0 and 2 differ after step "));
}
