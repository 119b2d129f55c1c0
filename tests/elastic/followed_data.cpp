// Data that grow while ranks train on them.
#include <muster/elastic/followed_data.hpp>

#include <algorithm>
#include <mutex>
#include <numeric>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/checkpoint.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "data/files.hpp"

namespace {

// Appends records whose values are their ids.
void append(const std::string& folder, std::size_t first, std::size_t count) {
  muster::record_set_writer writer(
      folder, {muster::record_form::fixed, {{"number", muster::dtype::float32, {}}}, 0, {}}, {}, /*file_bytes=*/64);
  for (std::size_t k = first; k < first + count; ++k) {
    const float value = static_cast<float>(k);
    writer.append(std::as_bytes(std::span(&value, 1)), {});
  }
  writer.commit();
}

muster::loader follow(const std::string& folder) {
  return muster::open_source("records:" + folder + "?follow") | muster::shuffle(3) | muster::batch(8) |
         muster::prefetch(2);
}

// The ids of the rest of the epoch, of all records, which are what their ids say.
std::vector<muster::sample_id> rest_of_epoch(muster::loader& loader) {
  std::vector<muster::sample_id> seen;
  while (const auto batch = loader.next({})) {
    for (std::size_t k = 0; k < batch.samples.size(); ++k) {
      REQUIRE(batch.values<float>()[k] == static_cast<float>(batch.samples[k]));
      seen.push_back(batch.samples[k]);
    }
    loader.commit();
  }
  return seen;
}

bool is_each_once(std::vector<muster::sample_id> seen, std::size_t count) {
  std::ranges::sort(seen);
  std::vector<muster::sample_id> all(count);
  std::iota(all.begin(), all.end(), muster::sample_id{0});
  return seen == all;
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
  const auto middle = loader.cursor().now();
  CHECK(rest_of_epoch(loader).size() == 42);
  loader.next_epoch();
  CHECK(is_each_once(rest_of_epoch(loader), 80));
  loader.next_epoch();
  CHECK(is_each_once(rest_of_epoch(loader), 80));
  const auto later = loader.cursor().now();

  auto other = follow(folder / "set");  // which sees all, and goes where the first one was
  CHECK(other.cursor().size == 87);
  other.open(middle);
  CHECK(other.cursor().now() == middle);
  CHECK(rest_of_epoch(other).size() == 42);
  other.open(later);
  CHECK_FALSE(other.next({}));
  auto wrong = middle;
  wrong.dataset ^= 1;
  CHECK_THROWS_WITH(other.open(wrong), contains("the dataset's digest is"));
  wrong = middle;
  wrong.size = 51;  // within a file
  CHECK_THROWS_WITH(other.open(wrong), contains("has no version of 51 records"));
  CHECK(other.cursor().now() == later);

  const auto plain = muster::open_source("records:" + (folder / "set")) | muster::batch(8);
  CHECK_FALSE(plain.follows());
  CHECK(plain.newest() == 0);
  CHECK_THROWS_WITH(muster::open_source("records:" + muster::record_files(folder / "set").files()[0].path + "?follow"),
                    contains("is no folder of records"));
  CHECK_THROWS_AS(muster::open_source("csv:" + folder.write("table", "1,2\n")).version(1), muster::configuration_error);
}

TEST_CASE("ranks go to the same version at the end of an epoch, and a checkpoint goes on in it") {
  const int ranks = GENERATE(1, 3);
  const temporary_folder folder;
  append(folder / "set", 0, 41);
  std::mutex mutex;
  std::vector<std::vector<muster::sample_id>> used(5);
  const auto train = [&](std::uint64_t from, std::uint64_t to, bool resume) {
    test::run_ranks(ranks, [&](muster::group& world) {
      auto loader = follow(folder / "set");
      muster::followed_data followed(loader);
      muster::state state{followed, loader.cursor()};
      auto session = muster::fixed_session(world);
      muster::checkpoint store(folder / "saved");
      if (resume && !store.load(session, state)) throw muster::mismatch_error("there is no checkpoint");
      const auto step = [&](muster::step& now) {
        const auto batch = loader.next(now.shard());
        const std::lock_guard lock(mutex);
        auto& here = used[now.epoch()];
        here.insert(here.end(), batch.samples.begin(), batch.samples.end());
        // Grows in the middle of each epoch, and at its last step when some ranks may have looked already.
        if (world.rank() == 0 && (loader.step() == 1 || loader.at_last_batch()))
          append(folder / "set", muster::record_files(folder / "set").size(), 9);
      };
      while (session.run(state, step, {.steps = to})) {
      }
      store.save(session, state);
      if (from > state.steps()) throw muster::mismatch_error("it went back");
    });
  };
  train(0, 3, false);  // into the first epoch, of 6 steps
  train(3, 6, true);   // to its end
  train(6, 9, true);   // into the second
  train(9, 40, true);
  CHECK(is_each_once(used[0], 41));
  CHECK(used[1].size() > 41);
  CHECK(used[2].size() > used[1].size());
  CHECK(is_each_once(used[1], used[1].size()));
  CHECK(is_each_once(used[2], used[2].size()));
}
