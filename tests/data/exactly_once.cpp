// Tests that a pipeline returns each record exactly once and with the same bytes, for any sequence of worlds, threads
// and cursors.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "files.hpp"
#include "pipelines.hpp"

TEST_CASE("what is in a record does not depend on threads, ranks, prefetching or where it is read from") {
  const auto run = [](auto make, int world) {
    auto loader = make();
    std::map<std::pair<std::uint64_t, muster::sample_id>, std::uint64_t> all;
    for (; loader.epoch() < 3; loader.next_epoch()) {
      while (loader.next({0, world})) {
        for (const auto& [id, record] : records_of_batch(loader, world)) all[{loader.epoch(), id}] = record;
        loader.commit();
      }
    }
    return all;
  };
  const auto with = [&](std::size_t ahead, int threads, bool mapped) {
    return [=] {
      return small(211, mapped) | muster::shuffle(9) | muster::batch(32) | muster::map(negative) |
             muster::augment(noise) | muster::prefetch({.batches = ahead, .threads = threads});
    };
  };
  const auto reference = run(with(0, 0, false), 1);
  CHECK(reference.size() == 3 * 211);
  CHECK(reference.at({0, 5}) != reference.at({1, 5}));  // random choices differ between epochs
  for (const int world : {1, 3, 7}) {
    for (const int threads : {0, 1, 2, 5}) {
      CHECK((run(with(3, threads, threads % 2 == 0), world) == reference));
    }
  }
  const auto cached = [] {
    return small(211) | muster::shuffle(9) | muster::batch(32) | muster::map(negative) |
           muster::cache(muster::in_memory) | muster::augment(noise) | muster::prefetch(2);
  };
  CHECK((run(cached, 2) == reference));
}

TEST_CASE("exactly once, whatever the worlds, the order, the batch, the threads and the bad records") {
  const char* const variable = std::getenv("MUSTER_TEST_SCENARIOS");
  const std::uint64_t scenarios = variable != nullptr ? std::strtoull(variable, nullptr, 10) : 500;
  temporary_folder folder;
  constexpr std::uint64_t sizes[] = {211, 97, 13, 2, 1, 307};  // mostly primes
  for (std::uint64_t seed = 1; seed <= scenarios; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    const std::uint64_t count = sizes[random.below(std::size(sizes))];
    const std::uint64_t size = 1 + random.below(50);
    const auto order = static_cast<muster::sample_order>(random.below(4));
    std::set<muster::sample_id> bad;
    if (random.below(2) == 0) {
      for (std::uint64_t i = 0; i < 1 + count / 20; ++i) bad.insert(random.below(count));
    }
    const bool mapped = random.below(2) == 0;
    const bool quarantine = random.below(2) == 0;
    const std::size_t ahead = random.below(4);
    const int threads = static_cast<int>(random.below(3));
    const bool cached = random.below(3) == 0;
    const bool wide = random.below(4) == 0;
    const test_records data = small(count, mapped, bad);
    const auto make = [&]() -> muster::loader {
      muster::bad_record_options policy{.policy = muster::bad_record_policy::skip};
      if (quarantine) policy = {.policy = muster::bad_record_policy::quarantine, .file = folder / "bad.jsonl"};
      auto ordered =
          small(count, mapped, bad) |
          muster::shuffle(
              seed, {.order = order, .block = 1 + seed % 20, .window = 1 + static_cast<std::uint32_t>(seed % 5)}) |
          muster::batch(size, {.per_rank = seed % 3 == 0}) | muster::on_bad_records(policy);
      const muster::prefetch made_ahead({.batches = ahead, .threads = threads});
      if (cached && wide) {
        return std::move(ordered) | muster::cache(muster::in_memory) | muster::augment(wide_noise) | made_ahead;
      }
      if (cached) return std::move(ordered) | muster::cache(muster::in_memory) | muster::augment(noise) | made_ahead;
      if (wide) return std::move(ordered) | muster::augment(wide_noise) | made_ahead;
      return std::move(ordered) | muster::augment(noise) | made_ahead;
    };
    auto loader = make();
    constexpr int worlds[] = {1, 3, 2, 5};
    for (int epoch = 0; epoch < 2; ++epoch, loader.next_epoch()) {
      sample_ids used;
      std::size_t generation = 0;
      std::uint64_t dealt = 0;
      while (true) {
        const int world = worlds[generation % std::size(worlds)];
        const auto first = loader.next({0, world});
        if (!first) break;
        if (random.below(4) == 0) ++generation;  // 1 -> 3 -> 2 -> 5 in the middle of an epoch
        const int new_world = worlds[generation % std::size(worlds)];
        if (random.below(6) == 0) {  // a failed step: some ranks took their part, and nothing is committed
          (void)loader.next({static_cast<int>(random.below(static_cast<std::uint64_t>(new_world))), new_world});
          continue;
        }
        if (random.below(8) == 0) {  // a joining rank has only the cursor
          auto joined = make();
          joined.open(loader.cursor());
          loader = std::move(joined);
        }
        std::uint64_t of_step = 0;
        std::uint64_t left_out = 0;
        std::uint64_t global = 0;
        for (int rank = 0; rank < new_world; ++rank) {
          const auto batch = loader.next({rank, new_world});
          REQUIRE(batch.position == dealt);
          REQUIRE((global == 0 || global == batch.global_size));
          global = batch.global_size;
          for (std::size_t i = 0; i < batch.samples.size(); ++i) {
            const auto id = batch.samples[i];
            const auto record = batch.record(i);
            float last;
            std::memcpy(&last, record.data() + record.size() - sizeof last, sizeof last);
            REQUIRE(batch.labels[i] == static_cast<float>(id));
            REQUIRE(std::floor(last) == static_cast<float>(static_cast<int>(data.view(id).back())));
            used.push_back(id);
          }
          of_step += batch.samples.size();
          left_out += batch.left_out;
        }
        // A bad record that is left out makes its batch smaller. No later record takes its place.
        REQUIRE(of_step + left_out == global);
        dealt += global;
        loader.commit();
      }
      REQUIRE(dealt == count);
      REQUIRE(sorted(used) == all_but(count, bad));
    }
    REQUIRE(loader.bad_records().count() <= bad.size());
  }
}

TEST_CASE("going on from a cursor gives the same bytes as never having stopped") {
  const auto make = [](std::optional<muster::sample_order> order) {
    return small(397) | muster::shuffle(3, {.order = order, .block = 25, .window = 4}) | muster::batch(30) |
           muster::augment(noise) | muster::prefetch(2);
  };
  for (const auto order :
       {muster::sample_order::shuffled, muster::sample_order::feistel, muster::sample_order::block_window}) {
    auto loader = make(order);
    for (int step = 0; step < 32; ++step) {  // three epochs
      if (!loader.next({})) loader.next_epoch();
      auto resumed = make(order);
      resumed.open(loader.cursor());
      REQUIRE(digest_of(resumed.next({})) == digest_of(loader.next({})));
      REQUIRE((records_of_batch(resumed, 3) == records_of_batch(loader, 2)));
      loader.commit();
    }
    CHECK_THROWS_WITH((small(397) | muster::batch(30)).open(loader.cursor()), contains("the order is"));
  }
}

TEST_CASE("what was made ahead for one world is dropped for another") {
  auto data = small(100);
  auto loader = data | muster::shuffle(1) | muster::batch(10) | muster::prefetch({.batches = 3, .threads = 1});
  for (int i = 0; i < 3; ++i) {
    REQUIRE(loader.next({0, 2}).samples.size() == 5);
    loader.commit();
  }
  const auto after = loader.next({1, 5});
  CHECK(after.samples.size() == 2);
  CHECK(after.position == 30);
  auto fresh = data | muster::shuffle(1) | muster::batch(10);
  fresh.open(loader.cursor());
  CHECK(digest_of(fresh.next({1, 5})) == digest_of(after));
  // Back at the first position, the batch is the same as before.
  CHECK(digest_of(loader.next({0, 2})) == digest_of(fresh.next({0, 2})));
}

TEST_CASE("asking again without a commit gives the same memory, and a commit the next batch") {
  auto loader = small(100) | muster::shuffle(1) | muster::batch(10) | muster::prefetch(2);
  const auto first = loader.next({});
  const auto* const where = first.bytes.data();
  const std::uint64_t digest = digest_of(first);
  CHECK(loader.next({}).bytes.data() == where);
  CHECK(digest_of(loader.next({})) == digest);
  loader.commit();
  CHECK(digest_of(loader.next({})) != digest);
}
