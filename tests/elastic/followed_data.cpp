// Data that grow while ranks train on them.
#include <muster/elastic/followed_data.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <numeric>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/barrier.hpp>
#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/checkpoint.hpp>

#include <muster/data/records/manifest_file.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "data/files.hpp"

namespace {

// Appends records whose values are their ids.
void append(const std::string& folder, std::size_t first, std::size_t count,
            std::optional<std::uint32_t> shard = std::nullopt) {
  muster::data::record_set_writer writer(
      folder, {muster::data::record_form::fixed, {{"number", muster::dtype::float32, {}}}, 0, {}}, {},
      /*file_bytes=*/64);
  for (std::size_t k = first; k < first + count; ++k) {
    const float value = static_cast<float>(k);
    writer.append(std::as_bytes(std::span(&value, 1)), {}, shard);
  }
  writer.commit();
}

muster::loader follow(const std::string& folder, const std::string& query = "follow") {
  return muster::open_source("records:" + folder + "?" + query) | muster::shuffle(3) | muster::batch(8) |
         muster::prefetch(2);
}

// Returns the ids of the rest of the epoch, and checks that all records have the values of their ids.
std::vector<muster::sample_id> rest_of_epoch(muster::loader& loader) {
  std::vector<muster::sample_id> ids;
  while (const auto batch = loader.next({})) {
    for (std::size_t k = 0; k < batch.samples.size(); ++k) {
      REQUIRE(batch.values<float>()[k] == static_cast<float>(batch.samples[k]));
      ids.push_back(batch.samples[k]);
    }
    loader.commit();
  }
  return ids;
}

bool is_each_once(std::vector<muster::sample_id> ids, std::size_t count) {
  std::ranges::sort(ids);
  std::vector<muster::sample_id> all(count);
  std::iota(all.begin(), all.end(), muster::sample_id{0});
  return ids == all;
}

// Returns a folder for rank `rank` of three, with every third file of a set and the manifest, which is put there last
// and atomically.
std::string own_folder(const temporary_folder& parent, int rank) {
  namespace fs = std::filesystem;
  const fs::path own = parent / ("rank-" + std::to_string(rank)), set = parent / "set";
  fs::create_directories(own);
  const auto entries = muster::data::detail::read_contents(set.string()).entries;
  for (std::size_t k = static_cast<std::size_t>(rank); k < entries.size(); k += 3)
    fs::copy(set / entries[k].file, own, fs::copy_options::skip_existing);
  fs::copy_file(set / "MANIFEST", own / "next");
  fs::rename(own / "next", own / "MANIFEST");
  return own.string();
}

// Trains three ranks for so many steps, each on the shards in its folder; `amid(rank, loader)` is called in each step.
template <class Amid>
std::vector<std::vector<muster::sample_id>> train_on_shards(const std::vector<std::string>& folders,
                                                            std::uint64_t steps, Amid&& amid,
                                                            std::vector<std::exception_ptr>* failures = nullptr,
                                                            const std::string& query = "&follow=1") {
  std::mutex mutex;
  std::vector<std::vector<muster::sample_id>> used(5);
  const auto train_rank = [&](muster::group& world) {
    auto loader =
        muster::open_source("shards:" + folders[static_cast<std::size_t>(world.rank())] + "?local=1" + query) |
        muster::shuffle(3) | muster::batch(8) | muster::prefetch(2);
    muster::followed_data followed(loader);
    muster::state state{followed, loader.cursor()};
    auto session = muster::fixed_session(world);
    const auto step = [&](muster::step& current) {
      const auto batch = loader.next(current.shard());
      if (muster::allreduce(current.group(), batch.samples.size(), muster::sum) != batch.global_size)
        throw muster::mismatch_error("the parts of a batch are not all of it");
      const std::lock_guard lock(mutex);
      for (std::size_t k = 0; k < batch.samples.size(); ++k) {
        if (batch.values<float>()[k] != static_cast<float>(batch.samples[k]))
          throw muster::mismatch_error("a wrong value");
        used[current.epoch()].push_back(batch.samples[k]);
      }
      amid(world.rank(), loader);
    };
    while (session.run(state, step, {.steps = steps})) {
    }
  };
  const auto outcomes = test::outcomes(3, train_rank);
  for (const auto& outcome : outcomes)
    if (failures == nullptr && outcome) std::rethrow_exception(outcome);
  if (failures != nullptr) *failures = outcomes;
  return used;
}

// Checks the failure of every rank: a rank that is notified before its own check reports the other rank's text.
void check_all_are(const std::vector<std::exception_ptr>& failures, const std::string& text) {
  int of_data = 0;
  for (const auto& failure : failures) {
    REQUIRE(failure);
    CHECK_THROWS_WITH(std::rethrow_exception(failure), contains(text));
    if (muster::exit_status_of(failure) == 3) ++of_data;
  }
  CHECK(of_data > 0);
}

}  // namespace

TEST_CASE("an epoch keeps the version that it began with, and the next one has what was agreed on") {
  const temporary_folder folder;
  append(folder / "set", 0, 50);
  auto loader = follow(folder / "set");
  REQUIRE(loader.follows());
  CHECK(loader.newest() == 50);
  (void)loader.next({});
  loader.commit();
  append(folder / "set", 50, 30);
  append(folder / "set", 80, 7);
  CHECK(loader.newest() == 87);
  loader.grow_to(80);
  const auto middle = loader.cursor().current();
  CHECK(rest_of_epoch(loader).size() == 42);
  loader.next_epoch();
  CHECK(is_each_once(rest_of_epoch(loader), 80));
  loader.next_epoch();
  CHECK(is_each_once(rest_of_epoch(loader), 80));
  const auto later = loader.cursor().current();

  auto second = follow(folder / "set");  // sees all records, and is moved to the first loader's position
  CHECK(second.cursor().size == 87);
  second.open(middle);
  CHECK(second.cursor().current() == middle);
  CHECK(rest_of_epoch(second).size() == 42);
  second.open(later);
  CHECK_FALSE(second.next({}));
  auto wrong = middle;
  wrong.dataset ^= 1;
  CHECK_THROWS_WITH(second.open(wrong), contains("the dataset's digest is"));
  wrong = middle;
  wrong.size = 51;  // within a file
  CHECK_THROWS_WITH(second.open(wrong), contains("has no version of 51 records"));
  CHECK(second.cursor().current() == later);

  const auto plain = muster::open_source("records:" + (folder / "set")) | muster::batch(8);
  CHECK_FALSE(plain.follows());
  CHECK(plain.newest() == 0);
  CHECK_THROWS_WITH(
      muster::open_source("records:" + muster::data::record_files(folder / "set").files()[0].path + "?follow"),
      contains("is not a folder of records"));
  CHECK_THROWS_AS(muster::open_source("csv:" + folder.write("table", "1,2\n")).version(1), muster::configuration_error);
}

TEST_CASE("ranks go to the same version at the end of an epoch or within, and a checkpoint goes on in it") {
  const int ranks = GENERATE(1, 3);
  const bool within = GENERATE(false, true);
  const temporary_folder folder;
  append(folder / "set", 0, 41);
  std::mutex mutex;
  std::vector<std::vector<muster::sample_id>> used(5);
  const auto train = [&](std::uint64_t first_step, std::uint64_t last_step, bool resume) {
    test::run_ranks(ranks, [&](muster::group& world) {
      auto loader = follow(folder / "set", within ? "every=2" : "follow");
      muster::barrier(world);  // all begin with the same version: rank 0 appends soon
      muster::followed_data followed(loader);
      muster::state state{followed, loader.cursor()};
      auto session = muster::fixed_session(world);
      muster::checkpoint store(folder / "saved");
      if (resume && !store.load(session, state)) throw muster::mismatch_error("there is no checkpoint");
      const auto step = [&](muster::step& current) {
        const auto batch = loader.next(current.shard());
        const std::lock_guard lock(mutex);
        auto& used_in_epoch = used[current.epoch()];
        used_in_epoch.insert(used_in_epoch.end(), batch.samples.begin(), batch.samples.end());
        // Grows the data in the middle of each epoch, and at its last step when some ranks may have checked already.
        if (world.rank() == 0 && muster::data::record_files(folder / "set").size() < 150 &&
            (loader.step() == 1 || loader.may_grow()))
          append(folder / "set", muster::data::record_files(folder / "set").size(), 9);
      };
      while (session.run(state, step, {.steps = last_step})) {
      }
      store.save(session, state);
      if (first_step > state.steps()) throw muster::mismatch_error("the state moved backwards");
    });
  };
  train(0, 3, false);  // into the first epoch, of 6 steps
  train(3, 6, true);   // to the end of the first epoch
  train(6, 9, true);   // into the second epoch
  train(9, within ? 75 : 40, true);
  CAPTURE(ranks, within, used[0].size(), used[1].size(), used[2].size());
  // Records that are added in the last step of an epoch join that epoch or the next, as some rank has checked before or
  // not.
  CHECK((within ? used[0].size() > 41 + 9 : used[0].size() == 41));
  CHECK(is_each_once(used[0], used[0].size()));
  CHECK(used[1].size() > 41);
  CHECK((within || used[2].size() > used[1].size()));
  CHECK(is_each_once(used[1], used[1].size()));
  CHECK(is_each_once(used[2], used[2].size()));
}

TEST_CASE("a state with another size of the agreed version is refused like any other part") {
  const temporary_folder folder;
  append(folder / "set", 0, 50);
  auto loader = follow(folder / "set");
  muster::followed_data followed(loader);
  muster::state state{followed, loader.cursor()};
  const auto part = std::ranges::find(state.parts(), "followed data", &muster::state_part::name);
  REQUIRE(part != state.parts().end());
  CHECK_THROWS_AS(part->load(std::vector<std::byte>(3)), muster::configuration_error);
  CHECK(loader.newest() == 50);
}

TEST_CASE("ranks that have opened different versions begin with the oldest of them") {
  const temporary_folder folder;
  append(folder / "set", 0, 41);
  std::mutex mutex;
  std::vector<std::vector<muster::sample_id>> used(2);
  test::run_ranks(3, [&](muster::group& world) {
    auto loader = follow(folder / "set");
    muster::barrier(world);
    if (world.rank() == 0) {
      append(folder / "set", 41, 9);
      loader = follow(folder / "set");
    }
    muster::barrier(world);
    muster::followed_data followed(loader);
    muster::state state{followed, loader.cursor()};
    auto session = muster::fixed_session(world);
    const auto step = [&](muster::step& current) {
      const auto batch = loader.next(current.shard());
      const std::lock_guard lock(mutex);
      used[current.epoch()].insert(used[current.epoch()].end(), batch.samples.begin(), batch.samples.end());
    };
    while (session.run(state, step, {.epochs = 2})) {
    }
  });
  CHECK(is_each_once(used[0], 41));
  CHECK(is_each_once(used[1], 50));
}

TEST_CASE("ranks with shards of their own use each record once, also of those that come later") {
  const temporary_folder folder;
  for (std::uint32_t shard = 0; shard < 5; ++shard) append(folder / "set", 8 * shard, 8, shard);
  std::vector<std::string> folders;
  for (int rank = 0; rank < 3; ++rank) folders.push_back(own_folder(folder, rank));
  const auto used = train_on_shards(folders, 5 + 7 + 7, [&](int rank, const muster::loader& loader) {
    if (rank != 0 || loader.epoch() != 0 || loader.step() != 2) return;
    append(folder / "set", 40, 15, 5);
    for (int other = 0; other < 3; ++other) (void)own_folder(folder, other);
  });
  CHECK(is_each_once(used[0], 40));
  CHECK(is_each_once(used[1], 55));
  CHECK(is_each_once(used[2], 55));
}

TEST_CASE("a shard that no rank has, and manifests that differ, end a training at every rank") {
  const temporary_folder folder;
  for (std::uint32_t shard = 0; shard < 3; ++shard) append(folder / "set", 8 * shard, 8, shard);
  std::vector<std::string> folders;
  for (int rank = 0; rank < 3; ++rank) folders.push_back(own_folder(folder, rank));
  std::vector<std::exception_ptr> failures;
  const auto nothing = [](int, const muster::loader&) {};
  const std::string lost = muster::data::detail::read_contents(folder / "set").entries[1].file;
  std::filesystem::remove(std::filesystem::path(folders[1]) / lost);
  (void)train_on_shards(folders, 1, nothing, &failures);
  check_all_are(failures, "shard " + lost + " is at none of the 3 ranks");
  append(folder / "set", 24, 8, 3);
  (void)own_folder(folder, 2);
  (void)train_on_shards(folders, 1, nothing, &failures, "");
  check_all_are(failures, "has other shards at rank 2 than at rank 0 (4 and 3 files, by their manifests)");
}
