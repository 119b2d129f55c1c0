// Shards that the root cuts and sends to the other ranks.
#include <muster/elastic/place_shards.hpp>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/open.hpp>

#include <muster/data/records/manifest_file.hpp>
#include "catch.hpp"
#include "comm/ranks.hpp"
#include "data/files.hpp"
#include "data/test_records.hpp"

namespace {

using source = std::optional<muster::data::any_record_source>;

source records(std::uint64_t size) {
  return muster::data::any_record_source(test_records({.size = size, .shape = {300}}));
}

// Returns the ids of the records that are readable in a folder: their labels.
std::vector<float> ids_in(const std::string& folder) {
  const auto shards = muster::open_source("shards:" + folder + "?local");
  const muster::held_shards held = shards.available_shards();
  const auto entries = muster::data::detail::read_contents(folder).entries;
  std::vector<float> ids;
  muster::sample_id first = 0;
  for (std::size_t k = 0; k < entries.size(); first += entries[k++].records) {
    if (held.available[k] == 0) continue;
    std::vector<muster::sample_id> own(entries[k].records);
    std::iota(own.begin(), own.end(), first);
    std::vector<std::byte> bytes(own.size() * 300);
    std::vector<float> labels(own.size());
    shards.read(own, {bytes, labels});
    ids.insert(ids.end(), labels.begin(), labels.end());
  }
  return ids;
}

}  // namespace

TEST_CASE("a rank cuts its records and sends each rank a shard, with one manifest and each record somewhere") {
  const temporary_folder folder;
  const int root = GENERATE(0, 2);
  const std::string by = GENERATE("range", "hash:record", "weights:1,0,3");
  const std::uint64_t size = GENERATE(1, 5000, 20000);
  CAPTURE(root, by, size);
  const bool shared = GENERATE(false, true);
  const auto folder_of = [&](int rank) { return folder / ("host-" + std::to_string(shared ? 0 : rank)); };
  for (int start = 0; start < 2; ++start) {
    test::run_ranks(3, [&](muster::group& world) {
      source from;
      if (world.rank() == root) from = records(size);
      muster::place_shards(world, from, folder_of(world.rank()), {.rule = by, .root = root});
    });
  }
  std::vector<float> all;
  for (int rank = 0; rank < (shared ? 1 : 3); ++rank) {
    CHECK(muster::data::detail::read_contents(folder_of(rank)).entries ==
          muster::data::detail::read_contents(folder_of(0)).entries);
    const auto ids = ids_in(folder_of(rank));
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::ranges::sort(all);
  std::vector<float> expected(size);
  std::iota(expected.begin(), expected.end(), 0.0f);
  CHECK(all == expected);
}

TEST_CASE("shards are not placed over other records, nor without data, nor by a rule that is none") {
  const temporary_folder folder;
  const auto place = [&](std::uint64_t size, const std::string& by) {
    test::run_ranks(2, [&](muster::group& world) {
      source from;
      if (world.rank() == 0 && size != 0) from = records(size);
      muster::place_shards(world, from, folder / ("host-" + std::to_string(world.rank())), {.rule = by});
    });
  };
  CHECK_THROWS_WITH(place(0, "range"), contains("has no data to cut"));
  CHECK_THROWS_WITH(place(100, "weights:1,2,3"), contains("3 weights were given for 2 shards"));
  place(100, "range");
  CHECK_THROWS_WITH(place(101, "range"), contains("has other records already"));
  std::filesystem::remove_all(folder / "host-1");  // a host that was lost receives its shard again
  place(100, "range");
  CHECK(ids_in(folder / "host-1").size() == 50);
}
