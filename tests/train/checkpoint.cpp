#include <muster/train/checkpoint.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <muster/core/log.hpp>
#include <muster/core/random.hpp>
#include <muster/data/classes.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/safetensors.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "../data/files.hpp"
#include "../fuzz/checkpoint.hpp"
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "train/saved_steps.hpp"
#include "train/saved_training.hpp"

namespace {

using namespace test;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace

TEST_CASE("a training that goes on from a checkpoint is bit for bit one that never ended") {
  const int ranks = GENERATE(1, 3);
  const muster::sync_mode mode =
      GENERATE(muster::sync_mode{}, muster::parse_sync_mode("local-sgd:3"), muster::parse_sync_mode("gossip:ring"));
  CAPTURE(ranks, muster::to_string(mode));
  const temporary_folder folder;
  test::run_ranks(ranks, [&](muster::group& world) {
    training uninterrupted(200, 50, mode);
    uninterrupted.chance = muster::random_stream(3, static_cast<std::uint64_t>(world.rank()));
    uninterrupted.run_to(world, 47);  // into the third epoch
    muster::checkpoint store(folder / "of the test");
    std::uint64_t saved = 0;
    {
      training first(200, 50, mode);
      first.chance = muster::random_stream(3, static_cast<std::uint64_t>(world.rank()));
      require(!load(store, world, first.state), "there is nothing yet");
      first.run_to(world, 20);  // the end of an epoch
      save(store, world, first.state);
      first.run_to(world, 31);
      save(store, world, first.state);
      saved = first.state.digest();
      first.run_to(world, 36);  // lost after the last save
    }
    training second(200, 50, mode);
    require(load(store, world, second.state), "there is one");
    require(second.state.steps() == 31, "the newest");
    require(second.state.digest() == saved, "what was saved");
    second.run_to(world, 47);
    require(second.state.digest() == uninterrupted.state.digest(), "all that is replicated");
    require(std::ranges::equal(second.arena.parameters(), uninterrupted.arena.parameters()),
            "parameters, whosever they are");
    require(second.mean == uninterrupted.mean && second.chance() == uninterrupted.chance(),
            "and what is of this rank alone");
    require(std::equal(second.used.rbegin(), second.used.rend(), uninterrupted.used.rbegin()), "the same samples");
  });
}

TEST_CASE("in another world the data goes on at its place, and no sample is lost or used twice") {
  const temporary_folder folder;
  std::mutex mutex;
  std::map<std::pair<std::uint64_t, muster::sample_id>, int> times;
  const auto train = [&](int ranks, std::uint64_t to) {
    test::run_ranks(ranks, [&](muster::group& world) {
      training job;
      muster::checkpoint store(folder / "store");
      const bool goes_on = load(store, world, job.state);
      const auto steps_before = job.state.steps();
      require(goes_on == (steps_before > 0), "all but the first go on");
      job.run_to(world, to);
      save(store, world, job.state);
      const std::lock_guard lock(mutex);
      for (const auto id : job.used) ++times[{0, id}];
    });
  };
  train(2, 7);
  train(5, 15);
  train(1, 18);
  train(3, 20);
  CHECK(times.size() == 200);
  CHECK(std::ranges::all_of(times, [](const auto& entry) { return entry.second == 1; }));
}

TEST_CASE("weights that each rank has of its own are of no use to another number of ranks") {
  const muster::sync_mode mode =
      GENERATE(muster::parse_sync_mode("local-sgd:3"), muster::parse_sync_mode("gossip:ring"));
  CAPTURE(muster::to_string(mode));
  const temporary_folder folder;
  test::run_ranks(2, [&](muster::group& world) {
    training job(200, 50, mode);
    job.run_to(world, 7);
    save(muster::checkpoint(folder / "store"), world, job.state);
  });
  muster::set_log_level(muster::log_level::error, true);
  for (const int ranks : {1, 3}) {
    const auto thrown = test::outcomes(ranks, [&](muster::group& world) {
      training job(200, 50, mode);
      (void)load(muster::checkpoint(folder / "store"), world, job.state);
    });
    for (const auto& failure : thrown) {
      REQUIRE(failure);
      CHECK_THAT(muster::describe(failure), contains("it has separate weights for 2 ranks"));
    }
  }
  muster::set_log_level(muster::log_level::warning, false);
}

TEST_CASE("the parameters in a checkpoint are exported as tensors") {
  const temporary_folder folder;
  const std::string file = folder / "model.safetensors", checkpoints = folder / "checkpoints";
  const auto refused = [&](const std::string& from, const std::string& why) {
    CHECK_THROWS_WITH(muster::export_parameters(from, file), contains(why));
    CHECK_FALSE(std::filesystem::exists(file));
  };
  test::run_ranks(1, [&](muster::group& world) {
    training trained(200, 50);
    muster::checkpoint store(checkpoints);
    refused(checkpoints, "has no complete checkpoint");
    trained.run_to(world, 3);
    save(store, world, trained.state);
    const std::string older = files_in(checkpoints, ".state").front().string();
    trained.run_to(world, 7);
    save(store, world, trained.state);
    muster::export_parameters(checkpoints, file);
    const muster::data::safetensors_file exported(file);
    REQUIRE(exported.tensors().size() == 2);
    std::vector<float> values(50);
    exported.read("w", std::vector<std::uint64_t>{50}, values);
    CHECK(std::ranges::equal(values, trained.arena.parameter("w")));
    exported.read("b", {}, std::span(values).first(1));
    CHECK(values[0] == trained.arena.parameter("b")[0]);
    CHECK(exported.metadata().at("steps") == "7");
    muster::export_parameters(older, file);
    CHECK(muster::data::safetensors_file(file).metadata().at("steps") == "3");
    std::filesystem::remove(file);
    std::filesystem::resize_file(older, std::filesystem::file_size(older) - 1);
    refused(older, "damaged or cut off");
  });
  test::run_ranks(2, [&](muster::group& world) {
    training trained(200, 50, muster::parse_sync_mode("local-sgd:3"));
    trained.run_to(world, 2);
    muster::checkpoint store(folder / "local");
    save(store, world, trained.state);
  });
  refused(folder / "local", "has no part 'parameters' (every rank has its own parameters");
}

TEST_CASE("the last checkpoints and the best one stay") {
  const temporary_folder folder;
  const bool smaller = GENERATE(false, true);
  test::run_ranks(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / "store", {.keep = 2, .smaller_is_better = smaller});
    const double metrics[] = {0.5, 0.9, 0.1, std::numeric_limits<double>::quiet_NaN(), 0.6, 0.7};
    for (std::size_t k = 0; k < std::size(metrics); ++k) {
      job.run_to(world, 2 * (k + 1));
      save(store, world, job.state, metrics[k]);
    }
    require(saved_steps(folder / "store") == std::vector<std::uint64_t>{smaller ? 6u : 4u, 10u, 12u},
            "the best and the last two");
  });
  CHECK(files_in(folder / "store").size() == 9);  // three of two ranks and the replicated part
}

TEST_CASE("a save removes checkpoints and what was left of them, and no file of another name") {
  const temporary_folder folder;
  const std::string where = folder / "store";
  std::filesystem::create_directories(where);
  const std::string stem = "step-000000000000.0000000000000001";  // older than the checkpoint that is saved
  const std::vector<std::string> foreign = {"step-1000.ckpt",
                                            "step-1000.best.pt",
                                            "step-20.bin",
                                            "step-5.csv",
                                            "step-7.adapter.safetensors",
                                            "step-9.e",
                                            "notes.txt",
                                            stem,
                                            stem + ".state.bak",
                                            stem + ".rank-0.tmp",
                                            stem + "0.state",
                                            "step-1.0123456789abcdef.state"};
  const std::vector<std::string> leftovers = {stem + ".state", stem + ".rank-1", stem + ".rank-0.12-3.tmp"};
  for (const auto& names : {foreign, leftovers}) {
    for (const auto& name : names) overwrite(where + "/" + name, "mine");
  }
  muster::set_log_level(muster::log_level::error, true);
  test::run_ranks(1, [&](muster::group& world) {
    training job;
    save(muster::checkpoint(where, {.keep = 1}), world, job.state);
  });
  muster::set_log_level(muster::log_level::warning, false);
  for (const auto& name : foreign) CHECK(content_of(where + "/" + name) == "mine");
  for (const auto& name : leftovers) CHECK_FALSE(std::filesystem::exists(where + "/" + name));
}

TEST_CASE("a save reads of the checkpoints before no more than their heads") {
  const auto bytes_read = [] {
    std::ifstream io("/proc/self/io");
    std::string name;
    std::uint64_t bytes = 0;
    io >> name >> bytes;
    REQUIRE(name == "rchar:");
    return bytes;
  };
  const temporary_folder folder;
  test::run_ranks(1, [&](muster::group& world) {
    training job(200, 100000);
    for (int k = 0; k < 3; ++k) save(muster::checkpoint(folder / "store", {.keep = 5}), world, job.state, 0.5);
    const auto before = bytes_read();
    save(muster::checkpoint(folder / "store", {.keep = 5}), world, job.state, 0.4);
    CHECK(bytes_read() - before < 100000);
  });
}

TEST_CASE("what is torn, damaged or of something else is refused, and the one before it used") {
  const temporary_folder folder;
  const std::string where = folder / "store";
  const auto look = [&](const std::function<void(training&, bool)>& check) {
    test::run_ranks(2, [&](muster::group& world) {
      training job;
      muster::checkpoint store(where);
      bool is_loaded = false;
      try {
        is_loaded = load(store, world, job.state);
      } catch (const muster::data_error&) {
        require(job.state.steps() == 0, "nothing was moved");
      }
      check(job, is_loaded);
    });
  };
  test::run_ranks(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(where);
    job.run_to(world, 3);
    save(store, world, job.state);
    job.run_to(world, 5);
    save(store, world, job.state);
  });
  muster::set_log_level(muster::log_level::error, true);
  for (const char* const kind : {".state", ".rank-1"}) {
    const auto newest = files_in(where, kind).back();
    const std::string good = content_of(newest);
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{39}, good.size() / 2, good.size() - 1}) {
      overwrite(newest, std::string_view(good).substr(0, size));
      look([](training& job, bool is_loaded) {
        require(is_loaded && job.state.steps() == 3, "the one before a torn one");
      });
    }
    std::string bad = good;
    bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] ^ 4);
    overwrite(newest, bad);
    look([](training& job, bool is_loaded) {
      require(is_loaded && job.state.steps() == 3, "the one before a damaged one");
    });
    std::filesystem::remove(newest);
    look([](training& job, bool is_loaded) {
      require(is_loaded && job.state.steps() == 3, "the one before a lost one");
    });
    overwrite(newest, good);
    look([](training& job, bool is_loaded) { require(is_loaded && job.state.steps() == 5, "the newest"); });
  }
  // A file that is valid, but belongs to another save.
  const auto of_rank = files_in(where, ".rank-1");
  const std::string good = content_of(of_rank.back());
  overwrite(of_rank.back(), content_of(of_rank.front()));
  REQUIRE(content_of(of_rank.back()).size() == good.size());
  look([](training& job, bool is_loaded) {
    require(is_loaded && job.state.steps() == 3, "the one before another's file");
  });
  for (const auto& path : of_rank) std::filesystem::remove(path);
  look([](training& job, bool is_loaded) {
    require(!is_loaded && job.loader.cursor().position == 0, "nothing was moved by those that lack a file");
  });
  for (const auto& state : files_in(where, ".state")) overwrite(state, "nothing of the kind");
  look([](training&, bool is_loaded) { require(!is_loaded, "none at all"); });
  test::run_ranks(1, [&](muster::group& world) {
    training job;
    CHECK_THROWS_WITH(load(muster::checkpoint(where), world, job.state),
                      contains("no checkpoint in this folder can be used") && contains("is not a checkpoint"));
  });
  muster::set_log_level(muster::log_level::warning, false);
}

TEST_CASE("a checkpoint of another model or of other data is refused with what differs") {
  const temporary_folder folder;
  muster::set_log_level(muster::log_level::error, true);
  test::run_ranks(1, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / "store");
    job.run_to(world, 3);
    save(store, world, job.state);
    training wider(200, 51);
    CHECK_THROWS_WITH(load(store, world, wider.state),
                      contains("its tensors are w[50] b and this model's are w[51] b"));
    training larger(201);
    CHECK_THROWS_WITH(load(store, world, larger.state), contains("the number of samples is 200 there and 201 here"));
    muster::arena plain(job.memory, {{"w", {50}}, {"b", {}}});
    muster::state less{plain};
    CHECK_THROWS_WITH(load(store, world, less), contains("has 'optimizer velocity' and this state does not"));
  });
  muster::set_log_level(muster::log_level::warning, false);
}

TEST_CASE("a checkpoint keeps the names of classes, and data of other names is refused") {
  const temporary_folder folder;
  const std::string records = folder / "records";
  std::ofstream(records) << std::string("\0a\1b\0c\1d", 8);
  const auto data = [&](const std::vector<std::string>& names) {
    auto source = muster::open_source("raw:" + records + "?shape=1&offset=1&label=uint8@0");
    return (names.empty() ? std::move(source) : muster::with_classes(std::move(source), names)) | muster::batch(2);
  };
  muster::set_log_level(muster::log_level::off, true);
  test::run_ranks(1, [&](muster::group& world) {
    std::vector<double> sum(1);
    const auto with = [&](const std::vector<std::string>& names, const auto& use) {
      auto loader = data(names);
      muster::state state{muster::restored_values{"sum", std::span(sum)}, loader.cursor()};
      use(loader, state);
    };
    const auto save_as = [&](const std::string& store, const std::vector<std::string>& names) {
      with(names, [&](auto& loader, auto& state) {
        auto session = muster::fixed_session(world);
        session.run(state,
                    [&](muster::step& current) {
                      (void)loader.next(current.shard());
                      sum[0] = 7;
                    },
                    {.steps = 1});
        save(muster::checkpoint(folder / store), world, state);
        sum[0] = 0;
      });
    };
    const auto loads = [&](const std::string& store, const std::vector<std::string>& names) {
      std::string outcome = "loaded";
      with(names, [&](auto&, auto& state) {
        try {
          require(load(muster::checkpoint(folder / store), world, state), "the checkpoint exists");
          require(sum[0] == 7, "the values are restored");
        } catch (const muster::data_error& refused) {
          outcome = refused.what();
        }
        sum[0] = 0;
      });
      return outcome;
    };
    save_as("named", {"cat", "dog"});
    CHECK(loads("named", {"cat", "dog"}) == "loaded");
    CHECK(loads("named", {}) == "loaded");
    CHECK_THAT(loads("named", {"cat", "horse"}),
               contains("has other classes (class 1 is 'dog' in the checkpoint and 'horse' in the data)"));
    CHECK_THAT(loads("named", {"cat", "dog", "horse"}),
               contains("(class 2 is none in the checkpoint and 'horse' in the data)"));
    save_as("nameless", {});
    CHECK(loads("nameless", {"cat", "dog"}) == "loaded");
  });
  muster::set_log_level(muster::log_level::warning, false);
}

TEST_CASE("every bit of a file counts, and every length but its own is wrong") {
  const temporary_folder folder;
  test::run_ranks(1, [&](muster::group& world) {
    training job(30, 3);
    muster::checkpoint store(folder / "store");
    job.run_to(world, 2);
    save(store, world, job.state, 0.25);
  });
  for (const auto& path : files_in(folder / "store")) {
    const std::string good = content_of(path);
    CHECK(fuzz::check_checkpoint(good));
    int accepted = 0;
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
      accepted += fuzz::check_checkpoint(bad) ? 1 : 0;
      accepted += fuzz::check_checkpoint(std::string_view(good).substr(0, at)) ? 1 : 0;
    }
    accepted += fuzz::check_checkpoint(good + '\0') ? 1 : 0;
    CHECK(accepted == 0);
  }
}

TEST_CASE("parts with the right checksum that make no sense are refused") {
  const temporary_folder folder;
  test::run_ranks(1, [&](muster::group& world) {
    training job(30, 3);
    job.run_to(world, 2);
    save(muster::checkpoint(folder / "store"), world, job.state);
  });
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  muster::random_stream random(seed);
  const std::string good = content_of(files_in(folder / "store", ".state").front());
  const std::size_t head = fuzz::sealed("").size() - 4;
  const std::string parts = good.substr(head, good.size() - 4 - head);
  REQUIRE(fuzz::check_checkpoint(fuzz::sealed(parts)));
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bad = parts;
    for (auto changes = 1 + random.below(3); changes > 0; --changes)
      bad[random.below(parts.size())] = static_cast<char>(random.below(4) == 0 ? 0xff : random.below(256));
    accepted += fuzz::check_checkpoint(fuzz::sealed(bad)) ? 1 : 0;
  }
  CHECK(accepted > 0);  // names and values may contain any bytes
  CHECK(accepted < 15000);
}

TEST_CASE(
    "the time between checkpoints is Young's where saves are cheap, and that between failures where they are not") {
  using muster::seconds;
  CHECK(muster::checkpoint_interval(seconds(1e-6), seconds(50'000)).count() == Approx(std::sqrt(0.1)).epsilon(1e-3));
  CHECK(muster::checkpoint_interval(seconds(20), seconds(3600)).count() == Approx(366.2571).epsilon(1e-6));
  CHECK(muster::checkpoint_interval(seconds(7200), seconds(3600)).count() == 3600);
}
