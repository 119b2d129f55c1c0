#include <muster/elastic/session.hpp>

#include <algorithm>
#include <numeric>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "elastic/numbers.hpp"

namespace {

struct total {
  std::vector<double> sum = {0.0};

  void describe(muster::state_parts& parts) { parts.add("sum", std::span(sum), muster::state_kind::replicated); }
};

// A session_backend of one rank that recovers from every failure except those of the user.
class recovering_backend final : public muster::detail::session_backend {
 public:
  explicit recovering_backend(muster::group& ranks) : ranks_(&ranks) {}
  void prepare(muster::state& target) override {
    if (look) look(target);
    if (jump) {
      target.move_to(*jump);
      target.follow_run(run);
    }
    jump.reset();
  }
  muster::group& ranks() override { return *ranks_; }
  std::uint64_t generation() const noexcept override { return generation_; }
  void recover(muster::state&, std::exception_ptr why) override {
    try {
      std::rethrow_exception(why);
    } catch (const muster::peer_failure&) {
      ++generation_;
    }
  }
  void committed(const muster::state& target) noexcept override { last = target.steps(); }

  std::function<void(const muster::state&)> look;
  std::optional<muster::state_position> jump;
  std::optional<muster::state::run_start> run;  // the run of the ranks that have that position
  std::uint64_t last = 0;

 private:
  muster::group* ranks_;
  std::uint64_t generation_ = 0;
};

}  // namespace

TEST_CASE("a session uses every sample of an epoch once, whatever the number of ranks") {
  const int ranks = GENERATE(1, 2, 5);
  constexpr std::uint64_t samples = 103;
  std::vector<std::vector<muster::sample_id>> used(static_cast<std::size_t>(ranks));
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  test::run_ranks(ranks, [&](muster::group& world) {
    const auto me = static_cast<std::size_t>(world.rank());
    auto loader = numbers{samples} | muster::shuffle(9) | muster::batch(10);
    total model;
    muster::state state{model, loader.cursor()};
    auto session = muster::fixed_session(world);
    std::uint64_t evaluations = 0;
    while (session.run(state,
                       [&](muster::step& step) {
                         const auto batch = loader.next(step.shard());
                         double mine = 0;
                         for (const auto id : batch.samples) mine += static_cast<double>(id);
                         mine = muster::allreduce(step.group(), mine, muster::sum);
                         model.sum[0] += mine;
                         used[me].insert(used[me].end(), batch.samples.begin(), batch.samples.end());
                         if (step.number() != state.steps() || step.epoch() != loader.epoch() || step.generation() != 0)
                           throw muster::mismatch_error("the step does not know where it is");
                       },
                       {.epochs = 3})) {
      const auto before = state.position();
      if (!session.evaluate(state, [&](muster::step& step) { (void)muster::allreduce(step.group(), 1, muster::sum); }))
        throw muster::mismatch_error("an evaluation was left out");
      if (state.steps() != before.steps || state.position().data != before.data)
        throw muster::mismatch_error("an evaluation moved the state");
      ++evaluations;
    }
    if (evaluations != 3 || state.steps() != 33 || loader.epoch() != 2)
      throw muster::mismatch_error("the run ended elsewhere");
    sums[me] = model.sum[0];
  });
  std::vector<int> times(samples, 0);
  for (const auto& mine : used) {
    for (const auto id : mine) ++times[static_cast<std::size_t>(id)];
  }
  CHECK(std::all_of(times.begin(), times.end(), [](int n) { return n == 3; }));
  for (const double sum : sums) CHECK(sum == 3.0 * 102 * 103 / 2);
}

TEST_CASE("runs end at their limits, alike wherever they begin") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{100} | muster::batch(10);
    total model;
    muster::state state{model, loader.cursor()};
    auto session = muster::fixed_session(world);
    const auto nothing = [](muster::step&) {};
    CHECK(session.run(state, nothing, {.steps = 3}));
    CHECK(state.steps() == 3);
    CHECK_FALSE(session.run(state, nothing, {.steps = 3}));
    CHECK(session.run(state, nothing, {.every_steps = 4}));
    CHECK(state.steps() == 4);
    CHECK(session.run(state, nothing, {.every_steps = 4}));
    CHECK(state.steps() == 8);
    CHECK(session.run(state, nothing, {.every_steps = 4}));  // an epoch ends there
    CHECK(state.steps() == 10);
    CHECK(state.epoch_is_over());
    CHECK_FALSE(session.run(state, nothing, {.epochs = 1}));
    CHECK(loader.epoch() == 0);
    CHECK(session.run(state, nothing));
    CHECK(loader.epoch() == 1);
    CHECK(state.steps() == 20);

    muster::state endless{model};
    CHECK_THROWS_WITH(session.run(endless, nothing), contains("would not end"));
    CHECK(session.run(endless, nothing, {.steps = 5}));
    CHECK(endless.steps() == 5);
    auto empty = numbers{0} | muster::batch(10);
    muster::state without{model, empty.cursor()};
    CHECK_THROWS_WITH(session.run(without, nothing), contains("has no batch"));
  });
}

TEST_CASE("in a fixed session a failed step leaves the state as it was and ends the run") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{100} | muster::batch(10);
    std::vector<float> mean(4, 1.0f);
    muster::state state{muster::restored_values{"mean", std::span(mean)}, loader.cursor()};
    auto session = muster::fixed_session(world);
    const auto fails_at = [&](std::uint64_t number) {
      return [&mean, number](muster::step& step) {
        mean[0] += 1.0f;
        if (step.number() == number) throw std::runtime_error("no more");
      };
    };
    CHECK_THROWS_WITH(session.run(state, fails_at(3)), "no more");
    CHECK(mean[0] == 4.0f);
    CHECK(state.steps() == 3);
    CHECK(loader.cursor().position == 30);
    CHECK_THROWS_AS(session.evaluate(state, fails_at(3)), std::runtime_error);
    CHECK(mean[0] == 4.0f);
    CHECK(session.run(state, fails_at(100)));
    CHECK(mean[0] == 11.0f);
  });
}

TEST_CASE("a run whose steps the caller begins and ends is the same as a run of a function") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{100} | muster::batch(10);
    std::vector<float> mean(4, 0.0f);
    muster::state state{muster::restored_values{"mean", std::span(mean)}, loader.cursor()};
    auto session = muster::session(std::make_unique<recovering_backend>(world));
    int failures = 0;
    {
      muster::step_run run(session, state, {.epochs = 2});
      while (muster::step* const current = run.next()) {
        try {
          mean[0] += 1.0f;
          if (current->number() == 4 && failures++ < 3) throw muster::peer_failure({1}, "somebody died");
          run.commit();
        } catch (...) {
          run.recover();
        }
      }
      CHECK(run.has_run());
    }
    CHECK(failures == 4);
    CHECK(mean[0] == 10.0f);
    CHECK(state.steps() == 10);
    {
      muster::step_run left(session, state, {.epochs = 2});
      CHECK(left.next() != nullptr);
      mean[0] = 7.0f;
    }  // the step was left: it did not happen
    CHECK(mean[0] == 10.0f);
    muster::step_run ends(session, state, {.epochs = 2});
    CHECK(ends.next() != nullptr);
    try {
      throw muster::configuration_error("mine");
    } catch (...) {
      CHECK_THROWS_AS(ends.recover(), muster::configuration_error);
    }
    muster::step_run over(session, state, {.steps = 10});
    CHECK(over.next() == nullptr);
    CHECK_FALSE(over.has_run());
  });
}

TEST_CASE("a session_backend that recovers has each step committed once, however often it fails") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{1000} | muster::shuffle(4) | muster::batch(7);
    std::vector<double> sum(1, 0.0);
    muster::state state{muster::restored_values{"sum", std::span(sum)}, loader.cursor()};
    auto owned = std::make_unique<recovering_backend>(world);
    auto& session_backend = *owned;
    muster::session session(std::move(owned));
    muster::random_stream random(11);
    std::uint64_t failures = 0;
    CHECK(session.run(state, [&](muster::step& step) {
      const auto batch = loader.next(step.shard());
      for (const auto id : batch.samples) sum[0] += static_cast<double>(id);
      if (random.below(3) != 0) return;
      ++failures;
      throw muster::peer_failure({1}, "somebody died");
    }));
    CHECK(failures > 10);
    CHECK(session.generation() == failures);
    CHECK(sum[0] == 999.0 * 1000 / 2);
    CHECK(session_backend.last == state.steps());

    CHECK_THROWS_AS(session.run(state, [&](muster::step&) { throw muster::configuration_error("mine"); }),
                    muster::configuration_error);
  });
}

TEST_CASE("a failure while an owner adopts its changes ends the run, and the state is refused from then on") {
  struct owner {
    float value = 0;
    int adopted = 0;
    int discarded = 0;

    void describe(muster::state_parts& parts) {
      parts.add("value", std::span(&value, 1));
      parts.hook(
          [this] {
            value += 1;  // half of the change
            if (++adopted == 3) throw muster::peer_failure({1}, "a device died");
          },
          [this] { ++discarded; });
    }
  };
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{100} | muster::batch(10);
    owner changing;
    muster::state state{changing, loader.cursor()};
    muster::session session(std::make_unique<recovering_backend>(world));  // would repeat the step
    int calls = 0;
    CHECK_THROWS_WITH(session.run(state, [&](muster::step&) { ++calls; }), contains("a device died"));
    CHECK(calls == 3);
    CHECK(changing.discarded == 0);
    CHECK(state.steps() == 2);
    CHECK(session.generation() == 0);
    CHECK_THROWS_WITH(state.digest(), contains("the state is lost"));
    CHECK_THROWS_WITH(session.run(state, [&](muster::step&) { ++calls; }), contains("last checkpoint"));
    CHECK_THROWS_AS(session.evaluate(state, [&](muster::step&) { ++calls; }), muster::configuration_error);
    CHECK(calls == 3);
  });
}

TEST_CASE("a cursor that cannot move fails its step, which has then not happened") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{20} | muster::batch(10);
    std::vector<float> mean(1, 0.0f);
    muster::state state{muster::restored_values{"mean", std::span(mean)}, loader.cursor()};
    auto session = muster::fixed_session(world);
    CHECK_THROWS_WITH(session.run(state,
                                  [&](muster::step& step) {
                                    mean[0] += 1.0f;
                                    if (step.number() == 0) return;
                                    const auto end = loader.cursor();
                                    end.commit();  // the program moves the cursor itself, to the end of the epoch
                                  }),
                      contains("there is no batch to commit"));
    CHECK(mean[0] == 1.0f);
    CHECK(state.steps() == 1);
    CHECK_NOTHROW(state.digest());
  });
}

TEST_CASE("a step that fails when a part of the state has just come is not run again") {
  test::run_ranks(1, [](muster::group& world) {
    struct lazy {
      std::vector<double> values = {2.0};
      bool used = false;
      void describe(muster::state_parts& parts) {
        if (used) parts.add("lazy", std::span(values));
      }
    } owner;
    total model;
    muster::state state{model, owner};
    muster::session session(std::make_unique<recovering_backend>(world));
    int calls = 0;
    const auto step = [&](muster::step&) {
      ++calls;
      owner.used = true;
      owner.values[0] += 1;
      if (calls == 1) throw muster::peer_failure({1}, "somebody died");
    };
    CHECK_THROWS_WITH(session.run(state, step, {.steps = 3}),
                      contains("part 'lazy' of the state was added in a step that"));
    CHECK(calls == 1);
    CHECK(session.run(state, step, {.steps = 3}));
    CHECK(owner.values[0] == 6);
  });
}

TEST_CASE("ranks exchange what a step has made before it commits, and a failure there is one of the step") {
  struct averaged {
    std::vector<double> weight = {0.0};
    std::vector<double> exchanged_at{};
    bool fails = false;
    void describe(muster::state_parts& parts) {
      parts.add("weight", std::span(weight));
      parts.exchange([this](muster::group& ranks) {
        exchanged_at.push_back(weight[0]);
        weight[0] = muster::allreduce(ranks, weight[0], muster::mean);
        if (std::exchange(fails, false)) throw muster::peer_failure({1}, "a rank died");
      });
    }
  } model;
  muster::group self(muster::make_self_transport());
  muster::state state{model};
  muster::session session(std::make_unique<recovering_backend>(self));
  model.fails = true;
  session.run(state, [&](muster::step&) { model.weight[0] += 1; }, {.steps = 2});
  CHECK(model.exchanged_at == std::vector<double>{1, 1, 2});  // the first step runs twice
  CHECK(model.weight[0] == 2);
  session.evaluate(state, [&](muster::step&) { model.weight[0] += 1; });
  CHECK(model.exchanged_at.size() == 3);
  CHECK(model.weight[0] == 2);
}

TEST_CASE("a rank whose state was moved on goes on from there") {
  test::run_ranks(1, [](muster::group& world) {
    auto loader = numbers{100} | muster::batch(10);
    auto ahead = numbers{100} | muster::batch(10);
    total model;
    muster::state state{model, loader.cursor()};
    auto owned = std::make_unique<recovering_backend>(world);
    auto& session_backend = *owned;
    muster::session session(std::move(owned));
    const auto nothing = [](muster::step&) {};

    for (int k = 0; k < 4; ++k) ahead.commit();
    // Joins in the middle of an epoch.
    session_backend.jump = muster::state_position{4, 0, 0, std::as_const(ahead).cursor()};
    std::uint64_t steps = 0;
    CHECK(session.run(state, [&](muster::step&) { ++steps; }));
    CHECK(steps == 6);

    session_backend.jump = muster::state_position{10, 1, 1, state.position().data};  // the others have evaluated
    CHECK_FALSE(session.evaluate(state, nothing));

    ahead.next_epoch();
    for (int k = 0; k < 10; ++k) ahead.commit();
    // The others have finished an epoch.
    session_backend.jump = muster::state_position{20, 1, 2, std::as_const(ahead).cursor()};
    CHECK(session.run(state, nothing));
    CHECK(state.steps() == 20);
    CHECK(session.evaluate(state, nothing));
    CHECK(session.run(state, nothing));
    CHECK(loader.epoch() == 2);
    CHECK(state.steps() == 30);
  });
}

// In an earlier version the rank trained the next epoch while the others evaluated the last one.
TEST_CASE("a rank that joins leaves out the calls that the others have behind them") {
  test::run_ranks(1, [](muster::group& world) {
    constexpr std::uint64_t epochs = 4;
    struct moment {  // a point at which another rank could join
      muster::state_position at;
      std::optional<muster::state::run_start> run;
      std::size_t calls;
    };
    const std::uint64_t every = GENERATE(0u, 2u);
    std::vector<moment> moments;
    std::vector<std::string> calls;
    const auto train = [&](const moment* joins) {
      auto loader = numbers{30} | muster::batch(10);
      total model;
      muster::state state{model, loader.cursor()};
      auto owned = std::make_unique<recovering_backend>(world);
      std::vector<std::string> done;
      if (joins != nullptr) {
        owned->jump = joins->at;
        owned->run = joins->run;
      } else {
        owned->look = [&](const muster::state& current) {
          moments.push_back({current.position(), current.run(), done.size()});
        };
      }
      muster::session session(std::move(owned));
      const auto note = [&](const std::string& name) { done.push_back(name + " " + std::to_string(state.steps())); };
      while (session.run(state, [&](muster::step&) { note("step"); }, {.epochs = epochs, .every_steps = every})) {
        session.evaluate(state, [&](muster::step&) { note("evaluation"); });
        session.evaluate(state, [&](muster::step&) { note("checkpoint"); });
      }
      session.evaluate(state, [&](muster::step&) { note("last evaluation"); });
      session.evaluate(state, [&](muster::step&) { note("report"); });
      return done;
    };
    calls = train(nullptr);
    REQUIRE(calls.size() >= epochs * (3 + 2) + 2);
    for (const auto& each : moments) {
      INFO("after " << each.calls << " calls, stopping every " << every);
      const std::vector<std::string> rest(calls.begin() + static_cast<std::ptrdiff_t>(each.calls), calls.end());
      CHECK(train(&each) == rest);
    }
  });
}
