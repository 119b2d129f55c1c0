// Checkpoints during their writing: in the background, with a failure, and interrupted.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/log.hpp>

#include "../data/files.hpp"
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "heard_log.hpp"
#include "train/saved_steps.hpp"
#include "train/saved_training.hpp"

using namespace test;

TEST_CASE("checkpoints that cannot be written are an error at every rank") {
  const temporary_folder folder;
  folder.write("file", "in the way");
  CHECK_THROWS_WITH(muster::checkpoint(folder / "file"), contains(folder / "file") && contains("Not a directory"));
  {  // applies to root too, since root may write anywhere
    const auto me = ::geteuid();
    std::filesystem::permissions(folder / "", std::filesystem::perms(0555));
    if (me == 0) REQUIRE(::seteuid(65534) == 0);
    CHECK_THROWS_WITH(muster::checkpoint(folder / "store"),
                      contains(folder / "store") && contains("Permission denied"));
    if (me == 0) REQUIRE(::seteuid(me) == 0);
    std::filesystem::permissions(folder / "", std::filesystem::perms(0755));
  }
  CHECK_THROWS_WITH(muster::checkpoint(folder / "store", {.keep = 0}), contains("keep at least 1"));
  const auto thrown = test::outcomes(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / "gone");
    (void)muster::allreduce(world, 1, muster::sum);
    if (world.rank() == 0) std::filesystem::remove_all(folder / "gone");
    (void)muster::allreduce(world, 1, muster::sum);
    save(store, world, job.state);
  });
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    CHECK_THAT(muster::describe(failure), contains("rank 0: cannot write"));
  }
}

TEST_CASE("a checkpoint whose parts are in different folders is an error at every rank") {
  const temporary_folder folder;
  const auto thrown = test::outcomes(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / (world.rank() == 0 ? "one" : "other"));
    save(store, world, job.state);
  });
  for (const auto& failure : thrown) {
    REQUIRE(failure);
    CHECK_THAT(muster::describe(failure),
               contains("the part of another rank is missing in the folder (there is no '") &&
                   contains(".rank-1': that rank uses another folder, or has ended)"));
  }
  CHECK(files_in(folder / "one", ".state").empty());
}

TEST_CASE("what is saved in the background is the state of its step, at all ranks, whatever the next step does") {
  const temporary_folder folder;
  test::run_ranks(3, [&](muster::group& world) {
    training job;
    job.chance = muster::random_stream(3, static_cast<std::uint64_t>(world.rank()));
    std::uint64_t saved = 0;
    {
      muster::checkpoint store(folder / "store");
      for (const std::uint64_t step : {5, 9, 14}) {
        job.run_to(world, step);
        save_in_background(store, world, job.state);
        saved = job.state.digest();
        job.run_to(world, step + 1);
        require(job.state.digest() != saved, "training goes on meanwhile");
      }
      const auto is_saved = [&] {
        const auto steps = saved_steps(folder / "store");
        return !steps.empty() && steps.back() == 14;
      };
      const auto until = muster::deadline_after(muster::seconds(60));
      while (!is_saved() && muster::clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    training resumed;
    require(load(muster::checkpoint(folder / "store"), world, resumed.state), "there is a checkpoint");
    require(resumed.state.digest() == saved, "the state of the step at which it was saved");
  });
}

TEST_CASE("a checkpoint that cannot be written in the background is a warning, and the next save is one of its own") {
  const temporary_folder folder;
  const test::heard_log until_the_end;
  std::string warnings;
  muster::set_log_callback([&](const muster::log_message& message) {
    warnings += message.text;
    std::error_code none;
    std::filesystem::rename(folder / "away", folder / "store", none);  // the writers at all ranks have failed
  });
  test::run_ranks(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / "store");
    const auto synchronise = [&] { (void)muster::allreduce(world, 1, muster::sum); };
    job.run_to(world, 3);
    save(store, world, job.state);
    synchronise();
    if (world.rank() == 0) std::filesystem::rename(folder / "store", folder / "away");
    synchronise();
    job.run_to(world, 5);
    save_in_background(store, world, job.state);
    job.run_to(world, 7);
    save(store, world, job.state);
    require(saved_steps(folder / "store") == std::vector<std::uint64_t>{3, 7},
            "the one before stays, the next is there");
  });
  CHECK_THAT(warnings, contains("a checkpoint was not written: rank 0: cannot write") &&
                           contains("(No such file or directory)") && contains("the earlier checkpoints remain"));
}

TEST_CASE("a writer of checkpoints killed at any moment leaves the ones before") {
  const char* const kills_text = std::getenv("MUSTER_TEST_KILLS");
  const int kills = kills_text != nullptr ? std::atoi(kills_text) : 25;
  const std::uint64_t seed = 23;
  CAPTURE(seed);
  muster::random_stream random(seed);
  const temporary_folder folder;
  constexpr int ranks = 2;
  // Numbers that identify their step.
  struct numbered {
    std::vector<std::uint64_t> all = std::vector<std::uint64_t>(4000), own = std::vector<std::uint64_t>(500);
    void fill(std::uint64_t step, std::uint64_t rank) {
      for (std::size_t i = 0; i < all.size(); ++i) all[i] = muster::mix(step * 7919 + i);
      for (std::size_t i = 0; i < own.size(); ++i) own[i] = muster::mix(step * 104729 + rank * 31 + i);
    }
    void describe(muster::state_parts& parts) {
      parts.add("all", std::span(all));
      parts.add("own", std::span(own), muster::state_kind::rank_local);
    }
  };
  const auto resume = [&](const std::string& where, std::uint64_t steps, std::uint64_t& steps_before) {
    test::run_ranks(ranks, [&](muster::group& world) {
      numbered model, expected;
      muster::state state{model};
      muster::checkpoint store(where, {.keep = 2});
      const auto rank = static_cast<std::uint64_t>(world.rank());
      if (load(store, world, state)) {
        expected.fill(state.steps(), rank);
        require(model.all == expected.all && model.own == expected.own, "the numbers are those of their step");
      }
      if (rank == 0) steps_before = state.steps();
      auto session = muster::fixed_session(world);
      const auto end = state.steps() + steps;
      while (steps > 0 && session.run(state, [](muster::step&) {}, {.steps = end, .every_steps = 1})) {
        model.fill(state.steps(), rank);
        save_in_background(store, world, state);
      }
    });
  };
  muster::set_log_level(muster::log_level::error, true);
  std::uint64_t furthest = 0, last = 0;
  int between = 0;
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    const std::string where = folder / ("store" + std::to_string(kill / 10));  // most kills resume in the same folder
    if (kill % 10 == 0) last = 0;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::uint64_t steps_before = 0;
      resume(where, 100000, steps_before);
      ::_exit(0);
    }
    const auto until = muster::deadline_after(muster::seconds(60));
    const auto is_saved = [&] {
      return std::ranges::any_of(saved_steps(where), [&](auto steps) { return steps > last; });
    };
    while (!is_saved() && muster::clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(15000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (std::filesystem::exists(where)) {
      const auto unfinished = files_in(where, ".tmp").size();
      between += unfinished > 0 || files_in(where).size() % 3 != 0 ? 1 : 0;
    }
    std::uint64_t steps_before = 0;
    resume(where, 0, steps_before);
    REQUIRE(steps_before > last);  // a complete checkpoint stays
    last = steps_before;
    furthest = std::max(furthest, steps_before);
  }
  muster::set_log_level(muster::log_level::warning, false);
  CHECK(furthest > 2);
  CHECK(between > 0);  // killed during a save
}

TEST_CASE("of two trainings that save into one folder the second one is refused at all its ranks") {
  const temporary_folder folder;
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const std::string where = folder / std::to_string(ranks);
    const auto thrown = test::outcomes(ranks, [&](muster::group& world) {
      training first, second;
      const auto synchronise = [&] { (void)muster::allreduce(world, 1, muster::sum); };
      muster::checkpoint first_store(where), second_store(where);
      synchronise();
      save(first_store, world, first.state);
      save(first_store, world, first.state);
      std::string why;
      try {
        save(second_store, world, second.state);
      } catch (const muster::configuration_error& refused) {
        why = refused.what();
      }
      require(why.find("do not belong to this training alone") != std::string::npos, why.c_str());
      save(first_store, world, first.state);  // this training continues
      synchronise();
      muster::checkpoint third_store(where);  // as in a training that resumes
      synchronise();
      save(third_store, world, second.state);
    });
    for (const auto& failed : thrown) CHECK(!failed);
    CHECK(files_in(where, ".state").size() == 3);  // keep
  }
}
