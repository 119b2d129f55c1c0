// Tests of records that are added during an epoch.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/writer.hpp>

#include "catch.hpp"
#include "files.hpp"

namespace {

// Appends records whose values are their ids.
void append_ids(const std::string& folder, std::uint64_t& first, std::uint64_t count) {
  muster::data::record_set_writer writer(
      folder, {muster::data::record_form::fixed, {{"number", muster::dtype::uint64, {}}}, 0, {}}, {},
      /*file_bytes=*/256);
  for (const std::uint64_t end = first + count; first < end; ++first)
    writer.append(std::as_bytes(std::span(&first, 1)), {});
  writer.commit();
}

std::vector<muster::sample_id> ids_below(std::uint64_t count) {
  std::vector<muster::sample_id> all(count);
  std::iota(all.begin(), all.end(), muster::sample_id{0});
  return all;
}

}  // namespace

TEST_CASE("records that join epochs are used once each, whatever the appends, worlds, orders and resumes", "[slow]") {
  constexpr std::uint64_t scenarios = 100;
  constexpr int worlds[] = {1, 3, 2, 5};
  std::uint64_t joins = 0;
  for (std::uint64_t seed = 1; seed <= scenarios; ++seed) {
    CAPTURE(seed);
    const temporary_folder folder;
    muster::random_stream random(seed);
    std::uint64_t written = 0;
    append_ids(folder / "set", written, 1 + random.below(90));
    const std::uint64_t size = 1 + random.below(20), every = 1 + random.below(4);
    const auto order = static_cast<muster::sample_order>(random.below(4));
    const bool drops = random.below(4) == 0 && size <= written, per_rank = random.below(3) == 0;
    const auto make = [&] {
      return muster::open_source("records:" + (folder / "set") + "?every=" + std::to_string(every)) |
             muster::shuffle(seed, {.order = order, .block = 1 + seed % 20, .window = 1 + std::uint32_t(seed % 5)}) |
             muster::batch(size, {.drop_last = drops, .per_rank = per_rank}) | muster::prefetch(random.below(3));
    };
    auto loader = make();
    std::uint64_t appends = 8;
    for (std::uint64_t epoch = 0; epoch < 3; ++epoch, loader.next_epoch()) {
      std::vector<muster::sample_id> used;
      std::uint64_t base = loader.cursor().size, waits = 0;
      while (true) {
        const int world = worlds[random.below(4)];
        if (!loader.next({0, world})) break;
        if (appends > 0 && random.below(3) == 0) {
          append_ids(folder / "set", written, 1 + random.below(30));
          --appends;
        }
        if (random.below(5) == 0) {  // a joining rank, or a resumed job, has only the cursor
          auto joined_loader = make();
          joined_loader.open(loader.cursor());
          REQUIRE(joined_loader.cursor().current() == loader.cursor().current());
          loader = std::move(joined_loader);
        }
        std::vector<muster::sample_id> of_step;
        for (int rank = 0; rank < world; ++rank) {
          const auto batch = loader.next({rank, world});
          for (std::size_t k = 0; k < batch.samples.size(); ++k) {
            REQUIRE(batch.values<std::uint64_t>()[k] == batch.samples[k]);
            of_step.push_back(batch.samples[k]);
          }
        }
        // Added samples are in separate batches, which follow immediately.
        const bool joined = loader.cursor().joined_used < loader.cursor().joined;
        for (const auto id : of_step) REQUIRE((id >= base) == joined);
        used.insert(used.end(), of_step.begin(), of_step.end());
        if (random.below(6) == 0) {  // a step that fails after the agreement of the ranks, and is repeated
          loader.grow_to(loader.newest());
          loader.grow_to(0);
          used.resize(used.size() - of_step.size());
          continue;
        }
        const auto before = loader.cursor().current();
        const bool may = loader.may_grow();
        if (may) loader.grow_to(loader.newest());
        if (!may && !joined && written > before.size) ++waits;
        REQUIRE((waits < every || per_rank));
        loader.commit();
        const bool grew = loader.cursor().size != before.size;
        REQUIRE(grew == (may && written > before.size));
        if (!grew) continue;
        ++joins;
        waits = 0;
        REQUIRE(loader.cursor().size == written);
      }
      const std::uint64_t size_at_end = loader.cursor().size;
      if (drops) {
        std::ranges::sort(used);
        REQUIRE(std::ranges::adjacent_find(used) == used.end());
        REQUIRE(size_at_end == loader.cursor().position + (size_at_end - loader.cursor().joined) % size);
      } else {
        std::ranges::sort(used);
        REQUIRE(used == ids_below(size_at_end));
      }
      REQUIRE(size_at_end == written);
    }
  }
  CHECK(joins > scenarios);
}

TEST_CASE("an order is as random for records that join as for others, and the rest of the epoch stays as it was") {
  const temporary_folder folder;
  std::uint64_t written = 0;
  append_ids(folder / "set", written, 100);
  const auto ids_of_epoch = [&](const std::string& options, const std::vector<std::uint64_t>& growing_steps) {
    auto loader = muster::open_source("records:" + (folder / "set") + options) | muster::shuffle(7) | muster::batch(10);
    std::vector<muster::sample_id> all;
    for (std::uint64_t step = 1; const auto batch = loader.next({}); ++step) {
      all.insert(all.end(), batch.samples.begin(), batch.samples.end());
      if (std::ranges::count(growing_steps, step) != 0) append_ids(folder / "set", written, 25);
      if (loader.may_grow()) loader.grow_to(loader.newest());
      loader.commit();
    }
    return all;
  };
  const auto plain = ids_of_epoch("?follow", {});
  const auto grown = ids_of_epoch("?every=4", {2, 8});
  REQUIRE(grown.size() == 150);
  CHECK(std::equal(grown.begin(), grown.begin() + 40, plain.begin()));
  CHECK(std::equal(grown.begin() + 65, grown.begin() + 105, plain.begin() + 40));
  CHECK(std::equal(grown.begin() + 130, grown.end(), plain.begin() + 80));
  const auto joined_from = [&](std::ptrdiff_t at, std::uint64_t first) {
    std::vector<muster::sample_id> order(grown.begin() + at, grown.begin() + at + 25);
    for (auto& id : order) id -= first;
    return order;
  };
  CHECK_FALSE(std::ranges::is_sorted(joined_from(40, 100)));
  CHECK(joined_from(40, 100) != joined_from(105, 125));
}

TEST_CASE("a cursor that no commit leads to is refused") {
  const temporary_folder folder;
  std::uint64_t written = 0;
  append_ids(folder / "set", written, 50);
  auto loader = muster::open_source("records:" + (folder / "set") + "?every=1") | muster::batch(8);
  append_ids(folder / "set", written, 20);
  REQUIRE(loader.next({}));
  loader.grow_to(loader.newest());
  loader.commit();
  const muster::cursor at = loader.cursor();
  REQUIRE(at.joined == 20);
  const auto refuses = [&](auto change) {
    muster::cursor wrong = at;
    change(wrong);
    CHECK_THROWS_WITH(loader.open(wrong), contains("between two batches"));
  };
  refuses([](auto& wrong) { wrong.joined = 71; });
  refuses([](auto& wrong) { wrong.joined_last = 21; });
  refuses([](auto& wrong) { wrong.joined_used = 9; });
  refuses([](auto& wrong) { wrong.joined_used = 3, wrong.position = 11; });
  refuses([](auto& wrong) { wrong.position = 9; });
  refuses([](auto& wrong) { wrong.joined_last = 10; });
  CHECK_NOTHROW(loader.open(at));
  CHECK_THROWS_AS(muster::open_source("shards:" + (folder / "set") + "?every=2"), muster::configuration_error);
}
