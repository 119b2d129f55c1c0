#include <muster/train/tracker.hpp>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include <muster/core/error.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"

namespace {

constexpr std::array<muster::phase, muster::phase_count> all_phases = {
    muster::phase::batch_load, muster::phase::forward,        muster::phase::loss,   muster::phase::backward,
    muster::phase::aggregate,  muster::phase::optimizer_step, muster::phase::metrics};

void pass_time() {
  const auto begin = muster::clock::now();
  while (muster::seconds_since(begin) < 2e-4) {
  }
}

// What a part of the library says when it has communicated for `span` seconds.
void say(muster::activity what, double span, std::uint64_t bytes) {
  REQUIRE(muster::current_event_sink() != nullptr);
  const muster::clock::time_point begin{};
  muster::current_event_sink()->record(
      {what, "test", begin, begin + std::chrono::duration_cast<muster::clock::duration>(muster::seconds(span)), bytes});
}

}  // namespace

TEST_CASE("a tracker adds up what the ranks measured and takes the time of the slowest") {
  const int ranks = GENERATE(1, 3);
  test::run_ranks(ranks, [&](muster::group& world) {
    muster::tracker tracker(world);
    for (int epoch = 0; epoch < 2; ++epoch) {
      say(muster::activity::communication, 100.0, 1000);  // outside of the batch clock: not part of the training
      {
        auto batches = tracker.batches();
        for (const auto which : all_phases) {
          auto phase = tracker.phase(which);
          pass_time();
        }
        say(muster::activity::communication, 1.0 + world.rank(), 8);
        say(muster::activity::data_wait, 0.25, 16);
        tracker.add_samples(static_cast<std::uint64_t>(10 + world.rank()));
      }
      const auto& report = tracker.end_epoch(world, {.train_loss = 0.5});
      const auto count = static_cast<std::uint64_t>(ranks);
      CHECK(report.samples == 10 * count + count * (count - 1) / 2);
      CHECK(report.communication_seconds == Approx(ranks));
      CHECK(report.communication_bytes == 8 * count);
      CHECK(report.data_wait_seconds == Approx(0.25));
      CHECK(report.compute_seconds >= 4 * 2e-4);
      CHECK(report.train_seconds >= 7 * 2e-4);
      CHECK(report.compute_seconds < report.train_seconds);
      CHECK(report.samples_per_second() == Approx(static_cast<double>(report.samples) / report.train_seconds));
    }
    CHECK(tracker.epochs().size() == 2);
    CHECK_FALSE(tracker.time_to_goal());
    const auto report = nlohmann::json::parse(tracker.json());
    CHECK(report["world_size"] == ranks);
    CHECK(report["transport"] == "local");
    CHECK(report["communication_seconds"].get<double>() == Approx(2 * ranks));
    for (const auto which : all_phases) {
      const auto& phase = report["phases"][std::string(to_string(which))];
      CHECK(phase["max_seconds"].get<double>() >= 2 * 2e-4);
      CHECK(phase["mean_seconds"].get<double>() >= 2 * 2e-4);
      CHECK(phase["mean_seconds"].get<double>() <= phase["max_seconds"].get<double>() * (1 + 1e-12));
    }
  });
}

TEST_CASE("the goal is reached at the end of the first epoch that meets it, by the same clock at every rank") {
  const auto& [text, when_reached] = GENERATE(table<const char*, std::size_t>(
      {{"accuracy=0.7", 2}, {"val_loss=0.4", 3}, {"train_loss=0.65", 1}, {"accuracy=0.9", 0}}));
  CAPTURE(text);
  const muster::goal goal = muster::parse_goal(text);
  std::vector<double> reached(2, -1.0);
  test::run_ranks(2, [&](muster::group& world) {
    muster::tracker tracker(world, {.goal = goal});
    const std::array<muster::epoch_metrics, 4> course = {
        {{0.6, 0.6, 0.5}, {0.7, 0.5, 0.7}, {0.5, 0.4, 0.8}, {0.4, 0.3, 0.6}}};
    double elapsed = 0;
    for (std::size_t epoch = 0; epoch < course.size(); ++epoch) {
      {
        auto batches = tracker.batches();
        pass_time();
      }
      elapsed += tracker.end_epoch(world, course[epoch]).train_seconds;
      CHECK(tracker.time_to_goal().has_value() == (when_reached != 0 && epoch + 1 >= when_reached));
      if (epoch + 1 == when_reached) CHECK(*tracker.time_to_goal() == Approx(elapsed));
    }
    reached[static_cast<std::size_t>(world.rank())] = tracker.time_to_goal().value_or(-1.0);
  });
  CHECK(reached[0] == reached[1]);
}

TEST_CASE("a tracker listens while it lives and leaves the sink as it found it") {
  test::run_ranks(1, [](muster::group& world) {
    CHECK(muster::current_event_sink() == nullptr);
    {
      muster::tracker outer(world);
      {
        const muster::tracker inner(world);
        CHECK(muster::current_event_sink() == &inner);
      }
      CHECK(muster::current_event_sink() == &outer);
    }
    CHECK(muster::current_event_sink() == nullptr);
  });
}

TEST_CASE("rank 0 writes the report and what was not measured is null") {
  const auto path = std::filesystem::temp_directory_path() / ("muster-tracker-" + std::to_string(getpid()) + ".json");
  test::run_ranks(2, [&](muster::group& world) {
    muster::tracker tracker(world);
    tracker.annotate("seed", world.rank() == 0 ? "1" : "of another rank");
    tracker.annotate("file", "not UTF-8: \xff");
    tracker.end_epoch(world, {.train_loss = 0.25});
    tracker.write(path.string());
  });
  const auto report = nlohmann::json::parse(std::ifstream(path));
  std::filesystem::remove(path);
  CHECK(report["annotations"]["seed"] == "1");
  CHECK(report["goal"].is_null());
  CHECK(report["time_to_goal_seconds"].is_null());
  REQUIRE(report["epochs"].size() == 1);
  CHECK(report["epochs"][0]["epoch"] == 1);
  CHECK(report["epochs"][0]["train_loss"] == 0.25);
  CHECK(report["epochs"][0]["val_accuracy"].is_null());
  CHECK(report["samples_per_second"] == 0.0);
}

TEST_CASE("a goal that cannot be read is refused with a way out") {
  const auto text = GENERATE("", "accuracy", "=0.5", "accuracy=", "accuracy=high", "accuracy=0", "accuracy=1.5",
                             "accuracy=nan", "acuracy=0.5", "loss=0.3");
  CAPTURE(text);
  CHECK_THROWS_AS(muster::parse_goal(text), muster::configuration_error);
  CHECK(muster::parse_goal("accuracy=0.85").value == 0.85);
  test::run_ranks(1, [](muster::group& world) {
    CHECK_THROWS_AS(muster::tracker(world, {.goal = {"top5", 0.5}}), muster::configuration_error);
  });
}
