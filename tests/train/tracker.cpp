#include <muster/train/tracker.hpp>

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

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

// Records an event of the library that took `span` seconds.
void record_event(muster::activity kind, double span, std::uint64_t bytes) {
  const muster::clock::time_point begin{};
  muster::current_event_sink()->record(
      {kind, "test", begin, begin + std::chrono::duration_cast<muster::clock::duration>(muster::seconds(span)), bytes});
}

// The results of a rank. Ranks are threads here, and only the main thread may check, since Catch2 is not thread safe.
struct observed {
  std::vector<muster::epoch_report> epochs;
  std::vector<std::optional<double>> time_to_goal;  // after each epoch
  std::string json;
};

std::vector<observed> at_all_ranks(int ranks, const std::function<observed(muster::group&)>& body) {
  std::vector<observed> all(static_cast<std::size_t>(ranks));
  test::run_ranks(ranks, [&](muster::group& world) { all[static_cast<std::size_t>(world.rank())] = body(world); });
  return all;
}

}  // namespace

TEST_CASE("a tracker adds up what the ranks measured and takes the time of the slowest") {
  const int ranks = GENERATE(1, 3);
  const auto all = at_all_ranks(ranks, [](muster::group& world) {
    muster::tracker tracker(world);
    for (int epoch = 0; epoch < 2; ++epoch) {
      record_event(muster::activity::communication, 100.0, 1000);  // outside the batch clock: not part of the training
      record_event(muster::activity::data_wait, 100.0, 1000);
      {
        auto batches = tracker.batches();
        for (const auto which : all_phases) {
          auto phase = tracker.phase(which);
          pass_time();
        }
        record_event(muster::activity::communication, 1.0 + world.rank(), 8);
        record_event(muster::activity::data_wait, 0.25, 16);
        record_event(muster::activity::aggregate, 0.125, 0);
        tracker.add_samples(static_cast<std::uint64_t>(10 + world.rank()));
      }
      tracker.end_epoch(world, {.train_loss = 0.5});
    }
    return observed{tracker.epochs(), {tracker.time_to_goal()}, tracker.json()};
  });
  const auto count = static_cast<std::uint64_t>(ranks);
  for (const auto& rank_result : all) {
    REQUIRE(rank_result.epochs.size() == 2);
    CHECK_FALSE(rank_result.time_to_goal.back());
    for (const auto& epoch : rank_result.epochs) {
      CHECK(epoch.samples == 10 * count + count * (count - 1) / 2);
      CHECK(epoch.communication_seconds == Approx(ranks));
      CHECK(epoch.communication_bytes == 8 * count);
      CHECK(epoch.data_wait_seconds == Approx(0.25));
      CHECK(epoch.compute_seconds >= 4 * 2e-4);
      CHECK(epoch.train_seconds >= 7 * 2e-4);
      CHECK(epoch.compute_seconds < epoch.train_seconds);
      CHECK(epoch.train_seconds ==
            all[0].epochs[static_cast<std::size_t>(&epoch - rank_result.epochs.data())].train_seconds);
      CHECK(epoch.samples_per_second() == Approx(static_cast<double>(epoch.samples) / epoch.train_seconds));
    }
    const auto report = nlohmann::json::parse(rank_result.json);
    CHECK(report["world_size"] == ranks);
    CHECK(report["transport"] == "threads");
    CHECK(report["communication_seconds"].get<double>() == Approx(2 * ranks));
    for (const auto which : all_phases) {
      const auto& phase = report["phases"][std::string(to_string(which))];
      if (which == muster::phase::batch_load)
        CHECK(phase["max_seconds"].get<double>() >= 2 * 0.25);  // from the recorded events
      if (which == muster::phase::aggregate) CHECK(phase["max_seconds"].get<double>() >= 2 * 0.125);
      CHECK(phase["max_seconds"].get<double>() >= 2 * 2e-4);
      CHECK(phase["mean_seconds"].get<double>() >= 2 * 2e-4);
      CHECK(phase["mean_seconds"].get<double>() <= phase["max_seconds"].get<double>() * (1 + 1e-12));
    }
  }
}

TEST_CASE("times of a rank are counted once, and their means over the ranks add up to the batch time") {
  const auto all = at_all_ranks(2, [](muster::group& world) {
    muster::tracker tracker(world);
    const double alone = world.rank() == 0 ? 1.0 : 3.0;
    {
      auto batches = tracker.batches();
      record_event(muster::activity::communication, 1e-4 * alone, 0);
      record_event(muster::activity::data_wait, 2e-4, 0);
      {
        auto phase = tracker.phase(muster::phase::forward);
        pass_time();
      }
      {  // like a batch normalisation over all ranks: this time is communication, not computation
        auto phase = tracker.phase(muster::phase::backward);
        pass_time();
        const auto begin = muster::clock::now();
        pass_time();
        muster::current_event_sink()->record({muster::activity::communication, "test", begin, muster::clock::now(), 0});
      }
      record_event(muster::activity::update, 3e-4, 0);
      for (int k = 0; k < 8; ++k) pass_time();  // recording the events took no time
    }
    {
      auto phase = tracker.phase(muster::phase::forward);
      pass_time();
    }  // outside any step
    tracker.end_epoch(world, {});
    return observed{tracker.epochs(), {}, tracker.json()};
  });
  const auto& epoch = all[0].epochs.front();
  CHECK(epoch.mean.communication >= 2e-4 + 2e-4);
  CHECK(epoch.mean.communication < epoch.communication_seconds);
  CHECK(epoch.mean.data_wait == Approx(2e-4));
  CHECK(epoch.mean.compute >= 2 * 2e-4 + 3e-4);
  CHECK(epoch.compute_seconds >= epoch.mean.compute + 2e-4 + 2e-4);  // the phases, including all nested events
  CHECK(epoch.mean.train <= epoch.train_seconds);
  CHECK(epoch.mean.other() >= 0);
  const auto report = nlohmann::json::parse(all[1].json);
  double sum = 0;
  for (const char* part : {"compute", "communication", "data_wait", "other"})
    sum += report["mean_" + std::string(part) + "_seconds"].get<double>();
  CHECK(sum == Approx(report["mean_train_seconds"].get<double>()));
  CHECK(report["epochs"][0]["mean_compute_seconds"] == report["mean_compute_seconds"]);
}

TEST_CASE("the goal is reached at the end of the first epoch that meets it, by the same clock at every rank") {
  const auto& [text, when_reached] = GENERATE(table<const char*, std::size_t>({{"accuracy=0.7", 2},
                                                                               {"val_loss=0.4", 3},
                                                                               {"train_loss=0.65", 1},
                                                                               {"accuracy=0.9", 0},
                                                                               {"train_accuracy=0.8", 4}}));
  CAPTURE(text);
  const muster::goal goal = muster::parse_goal(text);
  const auto all = at_all_ranks(2, [&](muster::group& world) {
    muster::tracker tracker(world, {.goal = goal});
    const std::array<muster::epoch_metrics, 4> course = {
        {{0.6, 0.6, 0.5, 0.5}, {0.7, 0.5, 0.7, 0.6}, {0.5, 0.4, 0.8, 0.7}, {0.4, 0.3, 0.6, 0.8}}};
    observed result;
    for (const auto& metrics : course) {
      {
        auto batches = tracker.batches();
        pass_time();
      }
      tracker.end_epoch(world, metrics);
      result.time_to_goal.push_back(tracker.time_to_goal());
    }
    result.epochs = tracker.epochs();
    return result;
  });
  CHECK(all[0].time_to_goal == all[1].time_to_goal);
  double elapsed = 0;
  double elapsed_then = 0;
  for (std::size_t epoch = 0; epoch < 4; ++epoch) {
    elapsed += all[0].epochs[epoch].train_seconds;
    if (epoch + 1 == when_reached) elapsed_then = elapsed;
    const auto& reached = all[0].time_to_goal[epoch];
    REQUIRE(reached.has_value() == (when_reached != 0 && epoch + 1 >= when_reached));
    if (reached) CHECK(*reached == Approx(elapsed_then));
  }
}

TEST_CASE("a tracker listens while it lives and leaves the sink as it found it") {
  std::vector<bool> as_expected;
  test::run_ranks(1, [&](muster::group& world) {
    as_expected.push_back(muster::current_event_sink() == nullptr);
    {
      muster::tracker outer(world);
      {
        const muster::tracker inner(world);
        as_expected.push_back(muster::current_event_sink() == &inner);
      }
      as_expected.push_back(muster::current_event_sink() == &outer);
    }
    as_expected.push_back(muster::current_event_sink() == nullptr);
  });
  CHECK(as_expected == std::vector<bool>(4, true));
}

TEST_CASE("rank 0 writes the report and what was not measured is null") {
  const auto path = std::filesystem::temp_directory_path() / ("muster-tracker-" + std::to_string(getpid()) + ".json");
  test::run_ranks(2, [&](muster::group& world) {
    muster::tracker tracker(world);
    {
      auto batches = tracker.batches();
      pass_time();
      tracker.add_samples(world.rank() == 0 ? 10 : 0);
    }
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
  CHECK(report["epochs"][0]["train_accuracy"].is_null());
  REQUIRE(report["ranks"].size() == 2);  // a separate entry for each rank
  CHECK(report["ranks"][0]["own_samples_per_second"] > 0);
  CHECK(report["ranks"][1] ==
        nlohmann::json({{"rank", 1}, {"own_samples_per_second", 0.0}, {"links", nlohmann::json::array()}}));
}

TEST_CASE("rank 0 exports the figures up to now at each epoch and what cannot be written costs no training") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-metrics-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const auto path = folder / "metrics.prom";
  const auto read = [&] {
    std::map<std::string, std::string> found;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with('#')) found[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
    }
    return found;
  };
  std::vector<std::map<std::string, std::string>> exported;
  test::run_ranks(2, [&](muster::group& world) {
    muster::tracker tracker(world, {.metrics = path.string()});
    muster::tracker nowhere(world, {.metrics = "/nowhere/metrics.prom"});
    for (int epoch = 1; epoch <= 2; ++epoch) {
      tracker.add_samples(10);
      tracker.end_epoch(world, {.train_loss = 0.5 / epoch});
      nowhere.end_epoch(world, {});
      if (world.rank() == 0) exported.push_back(read());
    }
  });
  REQUIRE(exported.size() == 2);
  CHECK((exported[0]["muster_epoch"] == "1" && exported[1]["muster_epoch"] == "2"));
  CHECK((exported[0]["muster_samples"] == "20" && exported[1]["muster_samples"] == "40"));
  CHECK((exported[0]["muster_train_loss"] == "0.5" && exported[1]["muster_train_loss"] == "0.25"));
  CHECK(exported[1]["muster_val_loss"] == "NaN");
  CHECK(exported[1]["muster_world_size"] == "2");
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a goal that cannot be read is refused with a way out") {
  const auto text = GENERATE("", "train_accuracy=2", "accuracy", "=0.5", "accuracy=", "accuracy=high", "accuracy=0",
                             "accuracy=1.5", "accuracy=nan", "acuracy=0.5", "loss=0.3");
  CAPTURE(text);
  CHECK_THROWS_AS(muster::parse_goal(text), muster::configuration_error);
  CHECK(muster::parse_goal("accuracy=0.85").value == 0.85);
  const auto thrown = test::outcomes(1, [](muster::group& world) { muster::tracker(world, {.goal = {"top5", 0.5}}); });
  CHECK(muster::exit_status_of(thrown[0]) == static_cast<int>(muster::error_kind::configuration));
}
