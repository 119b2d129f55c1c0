// Tests of record pipelines: the contents and memory of batches, and the errors that are reported.
#include <muster/data/pipeline.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <vector>

#include <muster/core/events.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/image.hpp>
#include "files.hpp"
#include "pipelines.hpp"

TEST_CASE("the pipeline of the manual reads as it should and gives aligned tensors") {
  test_records data({.size = 300, .mapped = true});
  auto loader =
      data | muster::shuffle(1) | muster::batch(128) | muster::augment(muster::crop_flip) | muster::prefetch(4);
  CHECK(to_string(loader.schema()) ==
        to_string(muster::data::record_schema{
            muster::data::record_form::fixed, {{"image", muster::dtype::float32, {32, 32, 3}}}, 0, {"label"}}));
  std::size_t samples = 0;
  while (auto batch = loader.next({0, 1})) {
    CHECK(reinterpret_cast<std::uintptr_t>(batch.bytes.data()) % muster::buffer_alignment == 0);
    CHECK(batch.values<float>().size() == batch.samples.size() * 32 * 32 * 3);
    CHECK_THROWS_AS(batch.values<double>(), muster::mismatch_error);
    samples += batch.samples.size();
    loader.commit();
  }
  CHECK(samples == 300);
  CHECK(loader.steps_per_epoch() == 3);
}

TEST_CASE("images of a batch are made in pieces by any number of threads, each as if it were alone") {
  const test_records data({.size = 300, .mapped = true});
  auto alone = muster::crop_flip;
  (void)alone.output(data.schema());
  std::vector<std::byte> expected(32 * 32 * 3 * sizeof(float));
  for (const int threads : {0, 1, 3}) {
    auto loader = data | muster::shuffle(8) | muster::batch(128) | muster::augment(muster::crop_flip) |
                  muster::prefetch({.batches = 3, .threads = threads});
    for (; loader.epoch() < 2; loader.next_epoch()) {
      while (const auto batch = loader.next({1, 2})) {
        for (std::size_t i = 0; i < batch.samples.size(); ++i) {
          muster::random_stream random(muster::mix(8 ^ 0x6175676d656e7401ULL) + loader.epoch(), batch.samples[i]);
          alone(data.view(batch.samples[i]), expected, random);
          REQUIRE(std::equal(expected.begin(), expected.end(), batch.record(i).begin()));
        }
        loader.commit();
      }
    }
  }
}

TEST_CASE("a released batch keeps its memory, which the loader uses again when the owner is gone") {
  const test_records data({.size = 300, .mapped = true});
  std::vector<std::pair<muster::minibatch, std::vector<std::byte>>> kept;
  std::vector<std::shared_ptr<const void>> owners;
  std::set<const std::byte*> places;
  {
    auto loader = data | muster::shuffle(8) | muster::batch(64) | muster::map(muster::normalise()) |
                  muster::prefetch({.batches = 2, .threads = 2});
    CHECK(loader.release_batch() == nullptr);
    while (const auto batch = loader.next({0, 1})) {
      kept.emplace_back(batch, std::vector<std::byte>(batch.bytes.begin(), batch.bytes.end()));
      CHECK(places.insert(batch.bytes.data()).second);
      loader.commit();
      owners.push_back(loader.release_batch());
      CHECK(owners.back() != nullptr);
    }
    loader.next_epoch();
    for (int k = 0; k < 3; ++k) {
      const auto batch = loader.next({0, 1});
      CHECK_FALSE(places.contains(batch.bytes.data()));
      loader.commit();
    }
    owners.erase(owners.begin());  // from here on that memory may be used
    kept.erase(kept.begin());
    for (int k = 0; k < 2; ++k) {
      const auto batch = loader.next({0, 1});
      CHECK(batch.samples.size() > 0);
      loader.commit();
    }
  }
  CHECK(kept.size() == 4);
  for (const auto& [batch, copy] : kept) CHECK(std::equal(copy.begin(), copy.end(), batch.bytes.begin()));
}

TEST_CASE("without further steps a pipeline gives the records as they are, mapped or not") {
  for (const bool mapped : {false, true}) {
    auto data = small(103, mapped);
    auto loader = data | muster::batch(10);
    muster::sample_id next = 0;
    while (auto batch = loader.next({0, 1})) {
      for (std::size_t i = 0; i < batch.samples.size(); ++i) {
        const auto expected = data.view(next);
        REQUIRE(batch.samples[i] == next++);
        REQUIRE(std::equal(expected.begin(), expected.end(), batch.record(i).begin()));
      }
      loader.commit();
    }
    CHECK(next == 103);
  }
}

TEST_CASE("records of unlike sizes lie one behind another") {
  auto builder = muster::data::dataset_builder::sparse("three rows", 3, 10, 4);
  const std::vector<std::uint64_t> offsets = {0, 3, 3, 4};
  std::copy(offsets.begin(), offsets.end(), builder.offsets().begin());
  const std::vector<std::uint32_t> indices = {1, 4, 9, 7};
  std::copy(indices.begin(), indices.end(), builder.indices().begin());
  std::fill(builder.values().begin(), builder.values().end(), 0.5f);
  const muster::dataset data = builder.finish();
  for (const bool cached : {false, true}) {
    muster::loader loader = cached ? muster::loader(data | muster::batch(2) | muster::cache(muster::in_memory))
                                   : muster::loader(data | muster::batch(2) | muster::prefetch(1));
    for (int epoch = 0; epoch < 2; ++epoch, loader.next_epoch()) {
      auto batch = loader.next({});
      REQUIRE(batch.samples.size() == 2);
      CHECK(batch.record(0).size() == 3 * sizeof(muster::data::sparse_entry));
      CHECK(batch.record(1).empty());
      loader.commit();
      batch = loader.next({});
      REQUIRE(batch.samples.size() == 1);
      muster::data::sparse_entry entry;
      REQUIRE(batch.record(0).size() == sizeof entry);
      std::memcpy(&entry, batch.record(0).data(), sizeof entry);
      CHECK(entry.index == 7);
      CHECK_THROWS_AS(batch.values<float>(), muster::mismatch_error);
    }
  }
}

TEST_CASE("the steady state uses the same few buffers") {
  auto loader = small(1000) | muster::shuffle(1) | muster::batch(10) | muster::augment(noise) |
                muster::prefetch({.batches = 3, .threads = 1});
  std::set<const std::byte*> buffers;
  for (; loader.epoch() < 3; loader.next_epoch()) {
    while (auto batch = loader.next({})) {
      buffers.insert(batch.bytes.data());
      loader.commit();
    }
  }
  CHECK(buffers.size() <= 5);
}

TEST_CASE("the memory of a batch is not used again while a step still writes there") {
  const auto data = small(40, true);
  const auto first_of = [&](muster::sample_id id) { return std::to_integer<std::uint8_t>(data.view(id)[0]); };
  std::mutex mutex;
  std::condition_variable changed;
  bool is_slow = false, has_ended = false, was_early = false;
  const auto copy_slowly = [&](std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
    std::ranges::copy(in, out.begin());
    std::unique_lock lock(mutex);
    if (in[0] == first_of(35)) {  // a record of the caller's next batch
      was_early = is_slow && !has_ended;
      changed.notify_all();
    }
    if (in[0] != first_of(15) || is_slow) return;
    is_slow = true;
    changed.notify_all();
    (void)changed.wait_for(lock, std::chrono::milliseconds(100), [&] { return was_early; });
    std::ranges::copy(in, out.begin());
    has_ended = true;
  };
  const auto step = muster::each<std::uint8_t, std::uint8_t>({16}, copy_slowly);
  auto loader = data | muster::batch(10) | muster::map(step) | muster::prefetch({.batches = 1, .threads = 1});
  auto saved = loader.cursor();
  saved.position = 30;
  (void)loader.next({});  // the thread prepares the batch of record 15
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return is_slow; });
  }
  loader.open(saved);
  const auto batch = loader.next({});
  CHECK_FALSE(was_early);
  for (std::size_t i = 0; i < 10; ++i) CHECK(std::ranges::equal(batch.record(i), data.view(30 + i)));
}

TEST_CASE("memory for batches ahead is bounded") {
  auto data = small(1000);
  auto loader = data | muster::batch(100) | muster::prefetch({.batches = 9, .threads = 0, .bytes = 2 * 1600});
  (void)loader.next({});
  CHECK(data.reads() == 100);  // without a thread no batch is prepared in advance
  std::set<const std::byte*> buffers;
  while (auto batch = loader.next({})) {
    buffers.insert(batch.bytes.data());
    loader.commit();
  }
  CHECK(buffers.size() <= 3);
}

TEST_CASE("an epoch that is not full is left out only on request") {
  auto loader = small(103) | muster::shuffle(1) | muster::batch(10, {.drop_last = true}) | muster::prefetch(2);
  CHECK(loader.steps_per_epoch() == 10);
  std::set<muster::sample_id> used;
  for (; loader.epoch() < 2; loader.next_epoch()) {
    int steps = 0;
    while (auto batch = loader.next({})) {
      REQUIRE(batch.samples.size() == 10);
      used.insert(batch.samples.begin(), batch.samples.end());
      ++steps;
      loader.commit();
    }
    CHECK(steps == 10);
    CHECK_THROWS_AS(loader.commit(), muster::configuration_error);
  }
  CHECK(used.size() > 100);  // the second epoch has other records
}

TEST_CASE("ranks without samples get a batch of none, with the count of all") {
  auto loader = small(3) | muster::batch(3) | muster::prefetch(1);
  const auto batch = loader.next({0, 5});
  CHECK(batch);
  CHECK(batch.samples.empty());
  CHECK(batch.global_size == 3);
  CHECK_THROWS_AS(loader.next({5, 5}), muster::configuration_error);
}

TEST_CASE("what map() and the source throw reaches the caller, with the record named, and next() can be tried again") {
  const auto make = [](int& fails, int threads) {
    auto data = small(50);
    auto picky = muster::each<std::uint8_t, float>({16}, [&fails](std::span<const std::uint8_t>, std::span<float> out) {
      if (fails > 0) {
        --fails;
        throw std::runtime_error("no luck");
      }
      std::fill(out.begin(), out.end(), 1.0f);
    });
    return data | muster::batch(10) | muster::map(picky) | muster::prefetch({.batches = 2, .threads = threads});
  };
  int fails = 1;
  auto loader = make(fails, 0);
  try {
    (void)loader.next({});
    FAIL("nothing was thrown");
  } catch (const muster::data_error& error) {
    CHECK_THAT(error.what(), contains("record 0 made map() fail (no luck)"));
    CHECK_THROWS_WITH(std::rethrow_if_nested(error), "no luck");
  }
  CHECK(loader.next({}).samples.size() == 10);

  auto spoilt = small(50, false, {7}) | muster::batch(10) | muster::prefetch({.batches = 2, .threads = 2});
  CHECK_THROWS_WITH(spoilt.next({}), contains("test:8: is spoilt"));
  CHECK_THROWS_WITH(spoilt.next({}), contains("test:8: is spoilt"));
}

TEST_CASE("bad records are left out up to the limit, and counted once") {
  const std::set<muster::sample_id> bad = {3, 17, 44};
  const auto make = [&](std::uint64_t limit) {
    return small(50, true, bad) | muster::shuffle(2) | muster::batch(8) |
           muster::on_bad_records({.policy = muster::bad_record_policy::skip, .limit = limit}) | muster::prefetch(2);
  };
  auto loader = make(3);
  for (; loader.epoch() < 2; loader.next_epoch()) {
    while (loader.next({})) loader.commit();
  }
  CHECK(loader.bad_records().count() == 3);
  auto strict = make(2);
  CHECK_THROWS_AS(
      [&] {
        while (strict.next({})) strict.commit();
      }(),
      muster::data_error);
  CHECK_THROWS_AS(strict.next({}), muster::data_error);
  // A map may also report bad records.
  auto picky = muster::each<std::uint8_t, float>({1}, [](std::span<const std::uint8_t> in, std::span<float> out) {
    if (in[0] % 16 == 0) throw muster::data_error({"test"}, "is too dark");
    out[0] = static_cast<float>(in[0]);
  });
  auto mapped = small(50) | muster::batch(8) | muster::map(picky) |
                muster::on_bad_records({.policy = muster::bad_record_policy::skip});
  std::uint64_t used_samples = 0, left_out = 0;
  while (const auto batch = mapped.next({})) {
    for (const float value : batch.values<float>()) REQUIRE(static_cast<int>(value) % 16 != 0);
    REQUIRE(batch.values<float>().size() == batch.samples.size());
    used_samples += batch.samples.size();
    left_out += batch.left_out;
    mapped.commit();
  }
  CHECK(used_samples + left_out == 50);
  CHECK(left_out == mapped.bad_records().count());
  CHECK(left_out > 0);
}

TEST_CASE("a dataset that grows has its new records from the next epoch on") {
  const test_records grown({.size = 70, .shape = {16}});
  auto loader = small(50) | muster::shuffle(1) | muster::batch(8) | muster::augment(noise) | muster::prefetch(2);
  std::size_t first = 0, second = 0;
  while (const auto batch = loader.next({})) {
    first += batch.samples.size();
    loader.commit();
  }
  loader.next_epoch(grown);
  CHECK(loader.cursor().size == 70);
  while (const auto batch = loader.next({})) {
    second += batch.samples.size();
    loader.commit();
  }
  CHECK(first == 50);
  CHECK(second == 70);
}

TEST_CASE("a loader stays as it was where a step refuses the source that was to follow") {
  auto loader =
      small(50) | muster::batch(8) | muster::cache(muster::in_memory) | muster::map(negative) | muster::prefetch(2);
  const auto first = records_of_batch(loader, 1);
  const auto floats = muster::data::dataset_builder::dense("floats", 3, 16).finish();
  CHECK_THROWS_WITH(loader.next_epoch(floats), contains("cannot map records"));
  REQUIRE(loader.source().size() == 50);
  CHECK(loader.epoch() == 0);
  CHECK(loader.cursor().size == 50);
  CHECK(records_of_batch(loader, 1) == first);
}

TEST_CASE("waiting for data is an event of the thread that waits") {
  struct sink final : muster::event_sink {
    void record(const muster::event& event) noexcept override {
      if (event.kind == muster::activity::data_wait) ++waits, bytes += event.bytes;
    }
    int waits = 0;
    std::uint64_t bytes = 0;
  } wait_events;
  const muster::scoped_event_sink installed(wait_events);
  auto loader = small(50) | muster::batch(10) | muster::prefetch(2);
  while (loader.next({})) loader.commit();
  CHECK(wait_events.waits == 5);
  CHECK(wait_events.bytes == 50 * 16);

  struct cache_sink final : muster::event_sink {
    void record(const muster::event& event) noexcept override {
      if (event.kind == muster::activity::cache_hit) hits += event.bytes;
      if (event.kind == muster::activity::cache_miss) misses += event.bytes;
    }
    std::uint64_t hits = 0, misses = 0;
  } cache_events;
  const muster::scoped_event_sink also(cache_events);
  auto cached = small(50) | muster::batch(10) | muster::cache(muster::in_memory);
  for (; cached.epoch() < 3; cached.next_epoch()) {
    while (cached.next({})) cached.commit();
  }
  CHECK(cache_events.misses == 50 * 16);
  CHECK(cache_events.hits == 2 * 50 * 16);
  cached.next_epoch(small(70));  // a new cache, whose events are reported from its start
  while (cached.next({})) cached.commit();
  CHECK(cache_events.misses == 120 * 16);
  CHECK(cache_events.hits == 2 * 50 * 16);
}

TEST_CASE("a loader is chosen at run time, and one that is thrown away early ends its threads") {
  for (int i = 0; i < 50; ++i) {
    muster::loader loader = i % 2 == 0 ? muster::loader(small(200) | muster::shuffle(1) | muster::batch(16) |
                                                        muster::prefetch({.batches = 4, .threads = 2}))
                                       : muster::loader(muster::data::any_record_source(small(200, true)) |
                                                        muster::batch(16) | muster::prefetch(1));
    for (int step = 0; step < i % 5; ++step) {
      (void)loader.next({});
      loader.commit();
    }
  }
}
