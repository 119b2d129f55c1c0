// Tests of records in shards: the shard for each record, and the rank that reads the record.
#include <muster/data/records/shards.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <set>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/manifest_file.hpp>
#include "../files.hpp"
#include "records.hpp"

namespace {

namespace fs = std::filesystem;
using strings = std::vector<std::string>;

const muster::data::record_schema schema{muster::data::record_form::fixed,
                                         {{"user", muster::dtype::float32, {}}, {"number", muster::dtype::float32, {}}},
                                         0,
                                         {"label"}};

// Returns the shard for each record. Record k has the user k % 97 and the label k % 10.
std::vector<std::uint32_t> cut(const std::string& rule_text, std::uint32_t shards, std::uint64_t records) {
  const muster::data::shard_rule rule(rule_text, shards, schema, records);
  std::vector<std::uint32_t> shard_of_record;
  for (std::uint64_t k = 0; k < records; ++k) {
    const float values[] = {static_cast<float>(k % 97), static_cast<float>(k)};
    const float label = static_cast<float>(k % 10);
    shard_of_record.push_back(rule(k, std::as_bytes(std::span(values)), {&label, 1}));
    REQUIRE(shard_of_record.back() < rule.shards());
  }
  return shard_of_record;
}

std::vector<std::uint64_t> sizes_of(const std::vector<std::uint32_t>& shard_of_record, std::size_t shards) {
  std::vector<std::uint64_t> sizes(shards);
  for (const auto shard : shard_of_record) ++sizes[shard];
  return sizes;
}

// Writes a folder with shards of these sizes. Record n, counted over all shards, has the number n.
void write_set(const std::string& folder, const std::vector<std::uint64_t>& sizes) {
  muster::data::record_set_writer writer(folder, schema);
  std::uint64_t k = 0;
  for (std::uint32_t shard = 0; shard < sizes.size(); ++shard) {
    for (const std::uint64_t end = k + sizes[shard]; k < end; ++k) {
      const float values[] = {0, static_cast<float>(k)}, label = 0;
      writer.append(std::as_bytes(std::span(values)), {&label, 1}, shard);
    }
  }
  writer.commit();
}

// Makes the folder of a rank, with the manifest and these files of a set.
std::string part_of_set(const temporary_folder& in, const std::string& set, int rank, const std::vector<bool>& has) {
  const std::string folder = in / ("rank-" + std::to_string(rank));
  fs::remove_all(folder);
  fs::create_directory(folder);
  fs::copy(fs::path(set) / "MANIFEST", folder);
  const auto entries = muster::data::detail::read_contents(set).entries;
  REQUIRE(entries.size() == has.size());
  for (std::size_t k = 0; k < has.size(); ++k)
    if (has[k]) fs::copy(fs::path(set) / entries[k].file, folder);
  return folder;
}

// Ranks at the same position, each with the shards that it has.
struct world_of_ranks {
  std::vector<muster::loader> loaders;

  void agree() {
    std::vector<muster::held_shards> held;
    for (const auto& loader : loaders) held.push_back(loader.available_shards());
    for (auto& loader : loaders) loader.assign_samples_to(held);
  }
};

std::vector<bool> drawn(muster::random_stream& random, std::size_t count, std::uint64_t of_ten) {
  std::vector<bool> has(count);
  for (std::size_t k = 0; k < count; ++k) has[k] = random.below(10) < of_ten;
  return has;
}

}  // namespace

TEST_CASE("records are cut by range, by weights and by a key") {
  CHECK(sizes_of(cut("range", 4, 10), 4) == std::vector<std::uint64_t>{3, 2, 3, 2});
  CHECK(sizes_of(cut("range", 3, 2), 3) == std::vector<std::uint64_t>{1, 0, 1});
  CHECK(sizes_of(cut("weights:2,1,1", 0, 100), 3) == std::vector<std::uint64_t>{50, 25, 25});
  CHECK(sizes_of(cut("weights:0,1.5,0", 3, 100), 3) == std::vector<std::uint64_t>{0, 100, 0});
  CHECK(std::ranges::is_sorted(cut("range", 7, 1000)));
  const auto by_user = cut("hash:user", 4, 1000);
  const auto by_label = cut("hash:label", 4, 1000);
  const auto by_record = cut("hash:record", 4, 10000);
  for (std::size_t k = 0; k < 1000; ++k) {
    REQUIRE(by_user[k] == by_user[k % 97]);
    REQUIRE(by_label[k] == by_label[k % 10]);
  }
  for (const std::uint64_t size : sizes_of(by_record, 4)) CHECK((size > 2300 && size < 2700));
}

TEST_CASE("a column of a table is a key by its name, and a label by the name of its column") {
  const temporary_folder folder;
  std::string text = "user,label,y\n";
  for (int k = 0; k < 1000; ++k)
    text += std::to_string(k % 97) + "," + std::to_string(k) + "," + std::to_string(k % 10) + "\n";
  const auto source = muster::open_source("csv:" + folder.write("users.csv", text) + "?label=y");
  const auto shards_by = [&](const std::string& rule_text, const muster::data::any_record_source& records) {
    const muster::data::shard_rule rule(rule_text, 4, records.schema(), records.size(), records.columns());
    std::vector<std::uint32_t> shard_of_record;
    muster::data::detail::record_run run;
    run.read(records, 0, records.size());
    const std::size_t bytes = records.schema().record_bytes();
    for (std::size_t k = 0; k < records.size(); ++k)
      shard_of_record.push_back(
          rule(k, std::span(run.bytes).subspan(k * bytes, bytes), std::span(run.labels).subspan(k, 1)));
    return shard_of_record;
  };
  const auto by_user = shards_by("hash:user", source), by_label = shards_by("hash:y", source);
  for (std::size_t k = 0; k < 1000; ++k) {
    REQUIRE(by_user[k] == by_user[k % 97]);
    REQUIRE(by_label[k] == by_label[k % 10]);
  }
  CHECK(by_user != by_label);
  CHECK(shards_by("hash:label", source) != by_label);  // a feature has the name `label`
  for (const std::uint64_t size : sizes_of(by_user, 4)) CHECK(size > 100);
  CHECK_THROWS_WITH(shards_by("hash:users", source), contains("records have no such key") && contains("user"));
  const auto unnamed = muster::open_source("csv:" + (folder / "users.csv") + "?label=2&ignore=1&header=1");
  CHECK(shards_by("hash:user", unnamed) == by_user);
  CHECK_THROWS_AS(shards_by("hash:1", unnamed), muster::configuration_error);  // ignored column
}

TEST_CASE("with another number of shards the fewest records move, and only to those that are new") {
  constexpr std::uint64_t records = 20000;
  for (const std::uint32_t shards : {1u, 3u, 8u}) {
    const auto before = cut("hash:record", shards, records);
    const auto after = cut("hash:record", shards + 1, records);
    std::uint64_t moved = 0;
    for (std::size_t k = 0; k < records; ++k) {
      if (before[k] == after[k]) continue;
      ++moved;
      REQUIRE(after[k] == shards);
    }
    const std::uint64_t part = records / (shards + 1);
    CAPTURE(shards, moved, part);
    CHECK((moved > part * 9 / 10 && moved < part * 11 / 10));
  }
}

TEST_CASE("what is no rule is refused in one line") {
  const auto refusal = [](const std::string& rule_text, std::uint32_t shards) -> std::string {
    try {
      (void)muster::data::shard_rule(rule_text, shards, schema, 10);
      return "none";
    } catch (const muster::configuration_error& why) {
      return why.what();
    }
  };
  CHECK_THAT(refusal("weights:0,0", 0), contains("the sum of the weights is 0"));
  for (const std::string wrong :
       {"weights:", "weights:1,,2", "weights:-1,2", "weights:x", "weights:inf,1", "weights:nan"})
    CHECK_THAT(refusal(wrong, 0), contains("is not a weight"));
  CHECK_THAT(refusal("weights:1,2", 3), contains("2 weights were given for 3 shards"));
  CHECK_THAT(refusal("range", 0), contains("there are no shards"));
  CHECK_THAT(refusal("colour", 2), contains("write range, hash:KEY or weights:2,1,1"));
  CHECK_THAT(refusal("hash:age", 2), contains("use one of record, label, user, number"));
}

TEST_CASE("each record exactly once, at a rank that has it, whatever the worlds, the weights and what lies where") {
  const std::uint64_t seed = GENERATE(range(std::uint64_t{1}, std::uint64_t{41}));
  CAPTURE(seed);
  muster::random_stream random(seed);
  const temporary_folder folder;
  std::vector<std::uint64_t> sizes(1 + random.below(9));
  for (auto& size : sizes) size = 1 + random.below(60);
  const std::uint64_t count = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  write_set(folder / "set", sizes);
  const std::uint64_t batch = 1 + random.below(40);
  const auto order = static_cast<muster::sample_order>(1 + random.below(3));
  const auto open = [&](const std::string& where, const std::string& options) {
    return muster::open_source("shards:" + where + options) | muster::shuffle(seed, {.order = order, .block = 7}) |
           muster::batch(batch) | muster::prefetch(random.below(3));
  };
  auto reference = open(folder / "set", "");  // all shards at one rank
  std::set<muster::sample_id> used;
  world_of_ranks ranks;
  while (const auto all = reference.next({})) {
    if (ranks.loaders.empty() || random.below(4) == 0) {  // ranks join and leave
      const int world = 1 + static_cast<int>(random.below(5));
      std::vector<std::vector<bool>> has;
      for (int rank = 0; rank < world; ++rank) has.push_back(drawn(random, sizes.size(), 1 + random.below(9)));
      for (std::size_t shard = 0; shard < sizes.size(); ++shard) has[random.below(has.size())][shard] = true;
      ranks.loaders.clear();
      for (int rank = 0; rank < world; ++rank) {
        const std::string where = part_of_set(folder, folder / "set", rank, has[static_cast<std::size_t>(rank)]);
        ranks.loaders.push_back(open(where, "?local=1&weight=" + std::to_string(1 + random.below(5))));
        ranks.loaders.back().open(reference.cursor().current());
      }
      ranks.agree();
    }
    const std::set<muster::sample_id> expected(all.samples.begin(), all.samples.end());
    std::set<muster::sample_id> got;
    for (std::size_t rank = 0; rank < ranks.loaders.size(); ++rank) {
      const auto part = ranks.loaders[rank].next({static_cast<int>(rank), static_cast<int>(ranks.loaders.size())});
      REQUIRE(part.global_size == all.samples.size());
      for (std::size_t k = 0; k < part.samples.size(); ++k) {
        float values[2];
        std::memcpy(values, part.record(k).data(), sizeof values);
        REQUIRE(values[1] == static_cast<float>(part.samples[k]));
        REQUIRE(got.insert(part.samples[k]).second);
      }
      ranks.loaders[rank].commit();
    }
    REQUIRE(got == expected);
    for (const auto id : expected) REQUIRE(used.insert(id).second);
    reference.commit();
  }
  CHECK(used.size() == count);
}

TEST_CASE("uneven shards end together, and where ranks have copies a batch is cut by their weights") {
  const temporary_folder folder;
  const std::vector<std::uint64_t> sizes{600, 200, 200};
  write_set(folder / "set", sizes);
  const auto parts = [&](const std::vector<std::vector<bool>>& has, const std::vector<int>& weights) {
    world_of_ranks ranks;
    for (std::size_t rank = 0; rank < has.size(); ++rank) {
      const std::string where = part_of_set(folder, folder / "set", static_cast<int>(rank), has[rank]);
      ranks.loaders.push_back(
          muster::open_source("shards:" + where + "?weight=" + std::to_string(weights[rank]) + "&local=1") |
          muster::shuffle(3) | muster::batch(50));
    }
    ranks.agree();
    std::vector<std::vector<std::size_t>> of_steps;
    for (int step = 0; step < 20; ++step) {
      std::vector<std::size_t> batch_sizes;
      for (std::size_t rank = 0; rank < has.size(); ++rank) {
        batch_sizes.push_back(
            ranks.loaders[rank].next({static_cast<int>(rank), static_cast<int>(has.size())}).samples.size());
        ranks.loaders[rank].commit();
      }
      of_steps.push_back(batch_sizes);
    }
    for (auto& loader : ranks.loaders) CHECK_FALSE(loader.next({0, static_cast<int>(has.size())}));
    return of_steps;
  };
  for (const auto& batch_sizes : parts({{true, false, false}, {false, true, false}, {false, false, true}}, {1, 1, 1}))
    CHECK(batch_sizes == std::vector<std::size_t>{30, 10, 10});
  for (const auto& batch_sizes : parts({{true, true, true}, {true, true, true}}, {3, 2}))
    CHECK(batch_sizes == std::vector<std::size_t>{30, 20});
  for (const auto& batch_sizes : parts({{true, true, true}, {false, false, true}}, {4, 1}))
    CHECK(batch_sizes == std::vector<std::size_t>{40, 10});
}

TEST_CASE("a shard that no rank has, or that is not the manifest's, is named") {
  const temporary_folder folder;
  write_set(folder / "set", {20, 30, 10});
  const auto entries = muster::data::detail::read_contents(folder / "set").entries;
  const auto names_file = [&](const std::string& text) { return contains(text); };
  {
    world_of_ranks ranks;
    for (int rank = 0; rank < 2; ++rank) {
      const auto where = part_of_set(folder, folder / "set", rank, {rank == 0, false, rank == 1});
      ranks.loaders.push_back(muster::open_source("shards:" + where + "?local") | muster::batch(8));
    }
    CHECK_THROWS_WITH(ranks.loaders[0].next({0, 2}), names_file("cannot be read by this rank alone"));
    CHECK_THROWS_AS(ranks.loaders[0].assign_samples_to({{.names = {"a"}, .available = {1}}}),
                    muster::configuration_error);
    auto plain = muster::open_source("records:" + (folder / "set")) | muster::batch(8);
    CHECK(plain.available_shards() == muster::held_shards());
    CHECK_THROWS_AS(plain.assign_samples_to({ranks.loaders[0].available_shards()}), muster::configuration_error);
    ranks.agree();
    for (int rank = 0; rank < 2; ++rank) {
      auto& loader = ranks.loaders[static_cast<std::size_t>(rank)];
      CHECK_THROWS_AS(loader.next({rank, 2}), muster::data_error);
      CHECK_THROWS_WITH(loader.next({rank, 2}), names_file("shard " + entries[1].file + " is at none of the 2 ranks"));
    }
    CHECK_THROWS_WITH(muster::open_source("shards:" + (folder / "rank-0")), names_file(entries[1].file));
    const auto source = muster::open_source("shards:" + (folder / "rank-0") + "?local");
    CHECK(source.size() == 60);
    CHECK(source.digest() == muster::open_source("shards:" + (folder / "set")).digest());
    std::uint64_t size = 0;
    const muster::sample_id elsewhere = 25;
    CHECK_THROWS_WITH(source.sizes({&elsewhere, 1}, {&size, 1}),
                      names_file(entries[1].file + ": is missing at this rank"));
  }
  {  // none of the files, because the manifest has the schema
    const auto where = part_of_set(folder, folder / "set", 3, {false, false, false});
    CHECK((muster::open_source("shards:" + where + "?local").schema() == schema));
    std::string manifest = content_of(where + "/MANIFEST");
    const auto note = manifest.find(".schema {");
    REQUIRE(note != std::string::npos);
    manifest[note + 8] = '[';
    folder.write("rank-3/MANIFEST", manifest);
    CHECK_THROWS_AS(muster::open_source("shards:" + where + "?local"), muster::data_error);
    folder.write("rank-3/MANIFEST", manifest.substr(0, manifest.rfind('\n', note) + 1));
    CHECK_THROWS_WITH(muster::open_source("shards:" + where + "?local"),
                      names_file("has none of the files in its manifest"));
  }
  write_set(folder / "other", {20, 30, 11});
  const auto other_entries = muster::data::detail::read_contents(folder / "other").entries;
  fs::copy(fs::path(folder / "other") / other_entries[2].file, fs::path(folder / "rank-0") / entries[2].file);
  CHECK_THROWS_WITH(muster::open_source("shards:" + (folder / "rank-0") + "?local"),
                    names_file(entries[2].file + ": does not match the manifest"));
  CHECK_THROWS_AS(muster::open_source("shards:" + (fs::path(folder / "set") / entries[0].file).string()),
                  muster::configuration_error);
  CHECK_THROWS_AS(muster::open_source("shards:" + (folder / "set") + "?weight=0"), muster::configuration_error);
}
