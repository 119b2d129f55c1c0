#include <muster/data/loader.hpp>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

thread_local std::size_t allocations = 0;

// A source whose records are only ids: the part of a source that a loader requires.
struct numbers {
  std::uint64_t count;
  std::uint64_t size() const { return count; }
  std::uint64_t digest() const { return 1000 + count; }
};
static_assert(muster::sample_source<numbers>);

using ids = std::vector<muster::sample_id>;

ids sorted(ids list) {
  std::sort(list.begin(), list.end());
  return list;
}

ids all(std::uint64_t count) {
  ids list(count);
  std::iota(list.begin(), list.end(), muster::sample_id{0});
  return list;
}

// Returns the samples that all ranks of a world receive for the batch at the cursor, in the order of the ranks.
template <class Loader>
ids whole_batch(Loader& loader, int world) {
  ids list;
  for (int rank = 0; rank < world; ++rank) {
    const auto batch = loader.next({rank, world});
    list.insert(list.end(), batch.samples.begin(), batch.samples.end());
    REQUIRE(batch.global_size <= loader.cursor().batch);
  }
  return list;
}

template <class Loader>
ids rest_of_epoch(Loader& loader, int world) {
  ids list;
  while (loader.next({0, world})) {
    const ids batch = whole_batch(loader, world);
    list.insert(list.end(), batch.begin(), batch.end());
    loader.commit();
  }
  return list;
}

}  // namespace

// Counts every allocation in this program.
void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// Without this overload a sanitizer's own operator would be used.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

TEST_CASE("an epoch uses every sample once, in batches of the size asked for but for the last") {
  auto loader = numbers{103} | muster::shuffle(5) | muster::batch(10);
  CHECK(loader.steps_per_epoch() == 11);
  ids first;
  std::uint64_t steps = 0;
  while (auto batch = loader.next({})) {
    REQUIRE(batch.epoch == 0);
    REQUIRE(batch.position == 10 * steps);
    REQUIRE(batch.global_size == (steps < 10 ? 10u : 3u));
    REQUIRE(batch.samples.size() == batch.global_size);
    first.insert(first.end(), batch.samples.begin(), batch.samples.end());
    loader.commit();
    REQUIRE(loader.step() == ++steps);
  }
  CHECK(steps == 11);
  CHECK(sorted(first) == all(103));
  CHECK_THROWS_AS(loader.commit(), muster::configuration_error);

  loader.next_epoch();
  CHECK(loader.epoch() == 1);
  const ids second = rest_of_epoch(loader, 1);
  CHECK(sorted(second) == all(103));
  CHECK(second != first);
}

TEST_CASE("without a shuffle the samples come as they are, in every epoch") {
  auto loader = numbers{25} | muster::batch(4);
  CHECK(rest_of_epoch(loader, 3) == all(25));
  loader.next_epoch();
  CHECK(rest_of_epoch(loader, 1) == all(25));
}

TEST_CASE("the batch does not depend on the world, and asking again changes nothing") {
  auto loader = numbers{1000} | muster::shuffle(5) | muster::batch(64);
  for (int step = 0; step < 16; ++step) {
    const ids alone = whole_batch(loader, 1);
    for (const int world : {2, 3, 7, 100}) REQUIRE(whole_batch(loader, world) == alone);
    loader.commit();
  }
}

TEST_CASE("worlds that change at any step lose nothing and repeat nothing") {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    const std::uint64_t count = random.below(300);
    const std::uint64_t size = 1 + random.below(40);
    const bool shuffled = random.below(4) != 0;
    const auto make = [&] {
      if (!shuffled) return numbers{count} | muster::batch(size);
      return numbers{count} | muster::shuffle(seed) | muster::batch(size);
    };
    auto loader = make();
    for (int epoch = 0; epoch < 2; ++epoch, loader.next_epoch()) {
      ids used;
      int world = 1;
      while (loader.next({0, world})) {
        if (random.below(3) == 0) world = 1 + static_cast<int>(random.below(9));
        if (random.below(5) == 0) {  // a failed step: some ranks took their part, and nothing is committed
          (void)loader.next({static_cast<int>(random.below(static_cast<std::uint64_t>(world))), world});
          continue;
        }
        if (random.below(5) == 0) {  // a joining rank has only the cursor
          auto joined = make();
          joined.open(loader.cursor());
          loader = std::move(joined);
        }
        const ids batch = whole_batch(loader, world);
        used.insert(used.end(), batch.begin(), batch.end());
        loader.commit();
      }
      REQUIRE(sorted(used) == all(count));
    }
  }
}

TEST_CASE("batches of each rank: a step takes as many as there are ranks, and every sample is used once") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    const std::uint64_t count = random.below(300);
    const std::uint64_t size = 1 + random.below(20);
    const bool drop_last = random.below(4) == 0;
    const muster::batch_options options{.drop_last = drop_last, .per_rank = true};
    auto loader = numbers{count} | muster::shuffle(seed) | muster::batch(size, options);
    for (int epoch = 0; epoch < 2; ++epoch, loader.next_epoch()) {
      const std::uint64_t end = drop_last ? count - count % size : count;
      ids used;
      for (int world = 1; loader.cursor().position < end; world = 1 + static_cast<int>(random.below(9))) {
        (void)loader.next({0, 1 + static_cast<int>(random.below(9))});  // a batch of a step that fails
        const std::uint64_t expected = std::min(size * static_cast<std::uint64_t>(world), end - used.size());
        ids step;
        for (int rank = 0; rank < world; ++rank) {
          const auto part = loader.next({rank, world});
          REQUIRE(part.global_size == expected);
          REQUIRE(part.samples.size() <= size);
          if (expected == size * static_cast<std::uint64_t>(world)) REQUIRE(part.samples.size() == size);
          step.insert(step.end(), part.samples.begin(), part.samples.end());
        }
        REQUIRE(step.size() == expected);
        used.insert(used.end(), step.begin(), step.end());
        loader.commit();
        REQUIRE(loader.cursor().position == used.size());
      }
      REQUIRE_FALSE(loader.next({0, 3}));
      if (!drop_last) REQUIRE(sorted(used) == all(count));
    }
  }
  auto loader = numbers{100} | muster::batch(10, {.per_rank = true});
  CHECK(loader.steps_per_epoch() == 10);
  (void)loader.next({0, 3});
  CHECK(loader.steps_per_epoch() == 4);
  CHECK_THROWS_WITH(loader.open((numbers{100} | muster::batch(10)).cursor()),
                    contains("the batch per rank is 0 there"));
  CHECK_THROWS_WITH(loader.next({0, 0}), contains("no shard"));
}

TEST_CASE("going on from a cursor is going on") {
  const auto make = [] { return numbers{997} | muster::shuffle(11) | muster::batch(30); };
  auto loader = make();
  for (int step = 0; step < 80; ++step) {  // three epochs
    if (!loader.next({})) loader.next_epoch();
    auto resumed = make();
    resumed.open(loader.cursor());
    REQUIRE(resumed.cursor() == loader.cursor());
    REQUIRE(whole_batch(resumed, 3) == whole_batch(loader, 2));
    REQUIRE(resumed.steps_per_epoch() - resumed.step() == (997 - loader.cursor().position + 29) / 30);
    loader.commit();
  }
  auto resumed = make();
  resumed.open(loader.cursor());
  CHECK(rest_of_epoch(resumed, 2) == rest_of_epoch(loader, 5));
}

TEST_CASE("a cursor of something else is refused, and the loader stays where it was") {
  auto loader = numbers{100} | muster::shuffle(1) | muster::batch(10);
  loader.commit();
  const muster::cursor before = loader.cursor();
  const auto refuses = [&](const muster::cursor& saved, const std::string& text) {
    CHECK_THROWS_WITH(loader.open(saved), contains(text));
    CHECK(loader.cursor() == before);
  };
  refuses((numbers{99} | muster::shuffle(1) | muster::batch(10)).cursor(), "the number of samples is 99 there and 100");
  refuses((numbers{100} | muster::shuffle(2) | muster::batch(10)).cursor(), "the seed is 2 there and 1 here");
  refuses((numbers{100} | muster::shuffle(1) | muster::batch(20)).cursor(), "the global batch is 20 there");
  refuses((numbers{100} | muster::batch(10)).cursor(), "the order is sequential there");
  refuses({}, "the number of samples is 0 there");
  muster::cursor damaged = before;
  damaged.position = 15;
  refuses(damaged, "position 15 is not between two batches");
  damaged.position = 110;
  refuses(damaged, "position 110");
  damaged.version = 1;
  refuses(damaged, "the version is 1 there");
}

TEST_CASE("a batch of 0 is refused, one larger than the data is all of it, and no data is no steps") {
  CHECK_THROWS_AS(numbers{10} | muster::batch(0), muster::configuration_error);
  auto all_at_once = numbers{10} | muster::batch(~std::uint64_t{0});
  CHECK(all_at_once.steps_per_epoch() == 1);
  CHECK(rest_of_epoch(all_at_once, 3) == all(10));
  auto nothing = muster::dataset() | muster::shuffle(1) | muster::batch(5);
  CHECK(nothing.steps_per_epoch() == 0);
  CHECK_FALSE(nothing.next({}));
}

TEST_CASE("samples grow from one epoch to the next, and have no records to do something with") {
  auto loader = numbers{25} | muster::batch(4);
  CHECK(rest_of_epoch(loader, 3) == all(25));
  loader.next_epoch(numbers{40});
  CHECK(rest_of_epoch(loader, 2) == all(40));
  CHECK(loader.name().empty());
  CHECK_THROWS_WITH(numbers{25} | muster::batch(4) | muster::prefetch(2), contains("no records"));
}

TEST_CASE("the cursor of a loader moves it, also once it is elsewhere") {
  auto loader = numbers{25} | muster::batch(10);
  const muster::sampler_handle at = loader.cursor();
  auto moved = std::move(loader);
  at.commit();
  CHECK(moved.cursor().position == 10);
  CHECK(at.position == 0);
  CHECK(at.current().position == 10);
  at.commit();
  CHECK_FALSE(at.epoch_is_over());
  at.commit();
  CHECK(at.epoch_is_over());
  at.next_epoch();
  CHECK(moved.epoch() == 1);
}

TEST_CASE("a loader allocates nothing on its way through the epochs") {
  auto loader = numbers{10007} | muster::shuffle(3) | muster::batch(100);
  (void)loader.next({});  // computes the first order
  const std::size_t before = allocations;
  std::uint64_t sum = 0;
  for (; loader.epoch() < 3; loader.next_epoch()) {
    while (const auto batch = loader.next({1, 3})) {
      for (const auto id : batch.samples) sum += id;
      loader.commit();
    }
  }
  CHECK(allocations == before);
  CHECK(sum > 0);
}
