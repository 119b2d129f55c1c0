#include <muster/train/checkpoint.hpp>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <thread>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/log.hpp>
#include <muster/core/random.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/sync/gradient_sync.hpp>

#include "../data/files.hpp"
#include "../fuzz/checkpoint.hpp"
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "elastic/numbers.hpp"
#include "heard_log.hpp"
#include "train/heap.hpp"
#include "train/saved_steps.hpp"

namespace {

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

std::vector<std::filesystem::path> files_in(const std::string& folder, std::string_view end = "") {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().string().ends_with(end)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

template <class Store>
bool load(Store&& store, muster::group& world, muster::state& of) {
  auto session = muster::fixed_session(world);
  return store.load(session, of);
}

template <class Store>
void save(Store&& store, muster::group& world, muster::state& of,
          double metric = std::numeric_limits<double>::quiet_NaN()) {
  auto session = muster::fixed_session(world);
  store.save(session, of, metric);
}

void save_in_background(muster::checkpoint& store, muster::group& world, muster::state& of) {
  auto session = muster::fixed_session(world);
  store.save(session, of, 0.5, [](muster::step&) { return muster::save_kind::in_background; });
}

// A training whose every number depends on the samples, their order, chance, and what was before.
struct training {
  explicit training(std::uint64_t samples = 200, std::size_t width = 50, const muster::sync_mode& mode = {})
      : arena(memory, {{"w", {width}}, {"b", {}}}),
        sync(arena, {.first_bucket = 64, .mode = mode}),
        optimizer(arena, {.momentum = 0.75f}),
        loader(numbers{samples} | muster::shuffle(17) | muster::batch(10)),
        state{arena, optimizer, muster::restored_values{"mean", std::span(mean), muster::state_kind::rank_local},
              muster::restored_values{"dropout", std::span(&chance, 1), muster::state_kind::rank_local},
              loader.cursor()} {}

  void run_to(muster::group& world, std::uint64_t steps) {
    auto session = muster::fixed_session(world);
    const auto step = [&](muster::step& now) {
      const auto batch = loader.next(now.shard());
      for (const auto id : batch.samples) used.push_back(id);
      auto backward = sync.begin(now.group());
      backward.add_samples(batch.samples.size());
      for (const std::size_t tensor : {std::size_t{1}, std::size_t{0}}) {
        for (float& value : backward.gradient(tensor)) {
          value = static_cast<float>(chance.uniform());
          for (const auto id : batch.samples) value += static_cast<float>(id) / 100.0f;
        }
        backward.ready(tensor);
      }
      backward.wait();
      mean[0] = 0.9f * mean[0] + 0.1f * arena.gradient(0)[0];
      optimizer.apply(0.125);
    };
    while (session.run(state, step, {.steps = steps})) {
    }
  }

  heap memory;
  std::vector<float> mean = std::vector<float>(3);
  muster::random_stream chance{3};
  muster::arena arena;
  muster::gradient_sync sync;
  muster::sgd optimizer;
  muster::loader loader;
  muster::state state;
  std::vector<muster::sample_id> used;
};

}  // namespace

TEST_CASE("a training that goes on from a checkpoint is bit for bit one that never ended") {
  const int ranks = GENERATE(1, 3);
  const muster::sync_mode mode =
      GENERATE(muster::sync_mode{}, muster::parse_sync_mode("local-sgd:3"), muster::parse_sync_mode("gossip:ring"));
  CAPTURE(ranks, muster::to_string(mode));
  const temporary_folder folder;
  test::run_ranks(ranks, [&](muster::group& world) {
    training whole(200, 50, mode);
    whole.chance = muster::random_stream(3, static_cast<std::uint64_t>(world.rank()));
    whole.run_to(world, 47);  // into the third epoch
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
      first.run_to(world, 36);  // and this is lost
    }
    training second(200, 50, mode);
    require(load(store, world, second.state), "there is one");
    require(second.state.steps() == 31, "the newest");
    require(second.state.digest() == saved, "what was saved");
    second.run_to(world, 47);
    require(second.state.digest() == whole.state.digest(), "all that is replicated");
    require(std::ranges::equal(second.arena.parameters(), whole.arena.parameters()), "parameters, whosever they are");
    require(second.mean == whole.mean && second.chance() == whole.chance(), "and what is of this rank alone");
    require(std::equal(second.used.rbegin(), second.used.rend(), whole.used.rbegin()), "the same samples");
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
      const auto begun = job.state.steps();
      require(goes_on == (begun > 0), "all but the first go on");
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
  CHECK(std::ranges::all_of(times, [](const auto& one) { return one.second == 1; }));
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
  CHECK(files_in(folder / "store").size() == 9);  // three of two ranks and what is replicated
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
      bool there = false;
      try {
        there = load(store, world, job.state);
      } catch (const muster::data_error&) {
        require(job.state.steps() == 0, "nothing was moved");
      }
      check(job, there);
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
      look([](training& job, bool there) { require(there && job.state.steps() == 3, "the one before a torn one"); });
    }
    std::string bad = good;
    bad[good.size() / 2] = static_cast<char>(bad[good.size() / 2] ^ 4);
    overwrite(newest, bad);
    look([](training& job, bool there) { require(there && job.state.steps() == 3, "the one before a damaged one"); });
    std::filesystem::remove(newest);
    look([](training& job, bool there) { require(there && job.state.steps() == 3, "the one before a lost one"); });
    overwrite(newest, good);
    look([](training& job, bool there) { require(there && job.state.steps() == 5, "the newest"); });
  }
  // One that is whole in itself, of another save.
  const auto of_rank = files_in(where, ".rank-1");
  const std::string good = content_of(of_rank.back());
  overwrite(of_rank.back(), content_of(of_rank.front()));
  REQUIRE(content_of(of_rank.back()).size() == good.size());
  look([](training& job, bool there) { require(there && job.state.steps() == 3, "the one before another's file"); });
  for (const auto& path : of_rank) std::filesystem::remove(path);
  look([](training& job, bool there) {
    require(!there && job.loader.cursor().position == 0, "nothing was moved by those that lack a file");
  });
  for (const auto& state : files_in(where, ".state")) overwrite(state, "nothing of the kind");
  look([](training&, bool there) { require(!there, "none at all"); });
  test::run_ranks(1, [&](muster::group& world) {
    training job;
    CHECK_THROWS_WITH(load(muster::checkpoint(where), world, job.state),
                      contains("no checkpoint of this folder can be used") && contains("is no checkpoint"));
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
    training other(201);
    CHECK_THROWS_WITH(load(store, world, other.state), contains("the number of samples is 200 there and 201 here"));
    muster::arena plain(job.memory, {{"w", {50}}, {"b", {}}});
    muster::state less{plain};
    CHECK_THROWS_WITH(load(store, world, less), contains("has 'optimizer velocity' and this state does not"));
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
  CHECK(accepted > 0);  // names and values may be anything
  CHECK(accepted < 15000);
}

TEST_CASE("checkpoints that cannot be written are an error at every rank") {
  const temporary_folder folder;
  folder.write("file", "in the way");
  CHECK_THROWS_WITH(muster::checkpoint(folder / "file"), contains(folder / "file") && contains("Not a directory"));
  {  // also for root, which may write anywhere
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
  for (const auto& one : thrown) {
    REQUIRE(one);
    CHECK_THAT(muster::describe(one), contains("rank 0: cannot write"));
  }
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
    training other;
    require(load(muster::checkpoint(folder / "store"), world, other.state), "there is a checkpoint");
    require(other.state.digest() == saved, "the state of the step at which it was saved");
  });
}

TEST_CASE("a checkpoint that cannot be written in the background is a warning, and the next save is one of its own") {
  const temporary_folder folder;
  const test::heard_log heard;
  test::run_ranks(2, [&](muster::group& world) {
    training job;
    muster::checkpoint store(folder / "store");
    const auto meet = [&] { (void)muster::allreduce(world, 1, muster::sum); };
    const auto at_root = [&](auto f) {
      meet();
      if (world.rank() == 0) f();
      meet();
    };
    job.run_to(world, 3);
    save(store, world, job.state);
    at_root([&] { std::filesystem::rename(folder / "store", folder / "away"); });
    job.run_to(world, 5);
    save_in_background(store, world, job.state);
    at_root([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      std::filesystem::rename(folder / "away", folder / "store");
    });
    require(saved_steps(folder / "store") == std::vector<std::uint64_t>{3}, "the one before stays");
    meet();
    job.run_to(world, 7);
    save(store, world, job.state);
    require(saved_steps(folder / "store") == std::vector<std::uint64_t>{3, 7}, "the next one is there");
  });
  CHECK_THAT(heard.text(), contains("a checkpoint was not written: rank 0: cannot write") &&
                               contains("(No such file or directory)") && contains("those before it stay"));
}

TEST_CASE("a writer of checkpoints killed at any moment leaves the ones before") {
  const char* const asked = std::getenv("MUSTER_TEST_KILLS");
  const int kills = asked != nullptr ? std::atoi(asked) : 25;
  const std::uint64_t seed = 23;
  CAPTURE(seed);
  muster::random_stream random(seed);
  const temporary_folder folder;
  constexpr int ranks = 2;
  // Numbers that say of which step they are.
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
  const auto go_on = [&](const std::string& where, std::uint64_t steps, std::uint64_t& begun) {
    test::run_ranks(ranks, [&](muster::group& world) {
      numbered model, wanted;
      muster::state state{model};
      muster::checkpoint store(where, {.keep = 2});
      const auto rank = static_cast<std::uint64_t>(world.rank());
      if (load(store, world, state)) {
        wanted.fill(state.steps(), rank);
        require(model.all == wanted.all && model.own == wanted.own, "the numbers are those of their step");
      }
      if (rank == 0) begun = state.steps();
      auto session = muster::fixed_session(world);
      const auto end = state.steps() + steps;
      while (steps > 0 && session.run(state, [](muster::step&) {}, {.steps = end, .every = 1})) {
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
    const std::string where = folder / ("store" + std::to_string(kill / 10));  // most are gone on with
    if (kill % 10 == 0) last = 0;
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::uint64_t begun = 0;
      go_on(where, 100000, begun);
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
      const auto left = files_in(where, ".tmp").size();
      between += left > 0 || files_in(where).size() % 3 != 0 ? 1 : 0;
    }
    std::uint64_t begun = 0;
    go_on(where, 0, begun);
    REQUIRE(begun > last);  // what was there once stays
    last = begun;
    furthest = std::max(furthest, begun);
  }
  muster::set_log_level(muster::log_level::warning, false);
  CHECK(furthest > 2);
  CHECK(between > 0);  // killed in the middle of a save
}

TEST_CASE(
    "the time between checkpoints is Young's where saves are cheap, and that between failures where they are not") {
  using muster::seconds;
  CHECK(muster::checkpoint_interval(seconds(1e-6), seconds(50'000)).count() == Approx(std::sqrt(0.1)).epsilon(1e-3));
  CHECK(muster::checkpoint_interval(seconds(20), seconds(3600)).count() == Approx(366.2571).epsilon(1e-6));
  CHECK(muster::checkpoint_interval(seconds(7200), seconds(3600)).count() == 3600);
}
