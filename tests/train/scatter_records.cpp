#include <muster/train/scatter_records.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/loader.hpp>
#include <muster/data/pipeline.hpp>

#include "catch.hpp"
#include "comm/ranks.hpp"
#include "data/test_records.hpp"

namespace {

// What each rank of a world got; ranks are threads here, and only the main thread may check.
std::vector<muster::record_shard> shards_of(int ranks, const muster::any_record_source& source, int root,
                                            const muster::scatter_records_options& chosen) {
  std::vector<muster::record_shard> all(static_cast<std::size_t>(ranks));
  test::run_ranks(ranks, [&](muster::group& world) {
    all[static_cast<std::size_t>(world.rank())] =
        muster::scatter_records(world, world.rank() == root ? &source : nullptr, root, chosen);
  });
  return all;
}

}  // namespace

TEST_CASE("shards are the records of the source, each at one rank, where the placement says") {
  const test_records source({.size = 1001, .shape = {5000}});
  for (const int ranks : {1, 3, 4}) {
    for (const auto kind :
         {muster::placement_kind::contiguous, muster::placement_kind::strided, muster::placement_kind::hash}) {
      const std::uint64_t block = ranks == 3 ? 10 : 1;
      const auto shards = shards_of(ranks, source, ranks - 1, {.how = {.kind = kind}, .block = block});
      std::vector<int> seen(source.size());
      for (const auto& shard : shards) {
        REQUIRE(shard.schema() == source.schema());
        REQUIRE(shard.name() == "test");
        REQUIRE(std::is_sorted(shard.ids().begin(), shard.ids().end()));
        REQUIRE(shard.size() >= 300 / static_cast<std::uint64_t>(ranks));
        for (muster::sample_id i = 0; i < shard.size(); ++i) {
          const auto id = shard.ids()[i];
          ++seen[id];
          const auto expected = source.view(id);
          const auto got = shard.view(i);
          REQUIRE(reinterpret_cast<std::uintptr_t>(got.data()) % 64 == 0);
          REQUIRE(std::equal(expected.begin(), expected.end(), got.begin(), got.end()));
        }
      }
      REQUIRE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE("a shard is a source like any other, with its labels") {
  const test_records source({.size = 100, .shape = {16}});
  const auto shards = shards_of(2, source, 0, {.how = {.kind = muster::placement_kind::strided}});
  CHECK(shards[0].digest() != shards[1].digest());
  auto loader = shards[1] | muster::shuffle(1) | muster::batch(7) | muster::prefetch(2);
  std::vector<float> labels;
  while (const auto batch = loader.next({})) {
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      REQUIRE(batch.labels[i] == static_cast<float>(shards[1].ids()[batch.samples[i]]));
      labels.push_back(batch.labels[i]);
    }
    loader.commit();
  }
  std::sort(labels.begin(), labels.end());
  REQUIRE(labels.size() == 50);
  for (std::size_t i = 0; i < labels.size(); ++i) CHECK(labels[i] == static_cast<float>(2 * i + 1));
}

TEST_CASE("records of unlike sizes are sent, and none at all") {
  std::vector<std::uint64_t> lengths(200);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = i % 7;
  std::uint64_t entries = 0;
  for (const auto length : lengths) entries += length;
  auto sparse = muster::dataset_builder::sparse("rows", lengths.size(), 50, entries);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    for (std::uint32_t k = 0; k < lengths[i]; ++k) {
      sparse.indices()[at] = 2 * k;
      sparse.values()[at++] = static_cast<float>(i);
    }
    sparse.offsets()[i + 1] = at;
    sparse.labels()[i] = static_cast<float>(i);
  }
  const muster::dataset source = sparse.finish();
  for (const auto& shard : shards_of(3, source, 1, {.how = {.kind = muster::placement_kind::hash}})) {
    std::vector<std::uint64_t> sizes(shard.size());
    std::vector<muster::sample_id> own(shard.size());
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = i;
    shard.sizes(own, sizes);
    for (std::size_t i = 0; i < own.size(); ++i) {
      const auto id = shard.ids()[i];
      REQUIRE(sizes[i] == lengths[id] * sizeof(muster::sparse_entry));
      float label = -1;
      shard.read(std::span(&own[i], 1), {{}, 0, std::span(&label, 1)});
      REQUIRE(label == static_cast<float>(id));
      if (sizes[i] == 0) continue;
      muster::sparse_entry last;
      std::memcpy(&last, shard.view(i).data() + sizes[i] - sizeof last, sizeof last);
      REQUIRE(last.index == 2 * (lengths[id] - 1));
      REQUIRE(last.value == static_cast<float>(id));
    }
  }
  for (const auto& shard : shards_of(2, test_records({.size = 0}), 0, {})) CHECK(shard.size() == 0);
}

TEST_CASE("what the root cannot read or use is an error at every rank") {
  const auto errors = [](const muster::any_record_source* source, const muster::scatter_records_options& chosen) {
    std::vector<std::string> texts(3);
    test::run_ranks(3, [&](muster::group& world) {
      try {
        (void)muster::scatter_records(world, world.rank() == 0 ? source : nullptr, 0, chosen);
      } catch (const muster::error& error) {
        texts[static_cast<std::size_t>(world.rank())] = error.what();
      }
    });
    return texts;
  };
  const muster::any_record_source spoilt = test_records({.size = 5000, .shape = {2000}, .bad = {3777}});
  auto texts = errors(&spoilt, {});
  CHECK_THAT(texts[0], contains("test:3778: is spoilt"));
  CHECK_THAT(texts[1], contains("rank 0 could not go on"));
  CHECK_THAT(texts[2], contains("rank 0 could not go on"));
  texts = errors(nullptr, {});
  CHECK_THAT(texts[0], contains("no source"));
  CHECK_THAT(texts[2], contains("rank 0 could not go on"));
  texts = errors(&spoilt, {.how = {.weights = {1}}});
  CHECK_THAT(texts[0], contains("weights"));
  CHECK_THAT(texts[1], contains("rank 0 could not go on"));
}
