// Tests of record caches: a cached record is equal to the computed record, even after kills and with full disks.
#include <muster/data/cache.hpp>

#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <muster/core/log.hpp>
#include <muster/core/random.hpp>
#include <muster/data/cache/lru_cache.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/fixed_records.hpp>
#include <muster/data/sources/image_folder.hpp>
#include "../files.hpp"
#include "../test_records.hpp"
#include "catch.hpp"
#include "heard_log.hpp"

namespace {

const auto negative_500 = muster::each<std::uint8_t, std::uint8_t>(
    {3000},
    [](std::span<const std::uint8_t> in, std::span<std::uint8_t> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::uint8_t>(255 - in[i % in.size()]);
    },
    1);

test_records data_of(std::uint64_t size, std::uint64_t version = 0) {
  return test_records({.size = size, .shape = {500}, .version = version});
}

auto cached(const test_records& data, const muster::cache_options& options, int threads = 0, std::uint64_t seed = 1) {
  return data | muster::shuffle(seed) | muster::batch(16) | muster::map(negative_500) | muster::cache(options) |
         muster::prefetch({.batches = 2, .threads = threads});
}

// Reads an epoch and returns the number of wrong records.
template <class Loader>
std::size_t wrong_records(Loader& loader, const test_records& data, muster::batch_shard part = {}) {
  std::size_t wrong = 0;
  while (const auto batch = loader.next(part)) {
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      const auto input = data.view(batch.samples[i]);
      const auto record = batch.record(i);
      bool right = batch.labels[i] == static_cast<float>(batch.samples[i]) && record.size() == 3000;
      for (std::size_t k = 0; right && k < record.size(); ++k) right = record[k] == ~input[k % input.size()];
      wrong += right ? 0 : 1;
    }
    loader.commit();
  }
  loader.next_epoch();
  return wrong;
}

std::size_t files_in(const std::string& folder, const std::string& extension) {
  std::size_t count = 0;
  for (const auto& found : std::filesystem::directory_iterator(folder)) count += found.path().extension() == extension;
  return count;
}

std::string the_file(const std::string& folder) { return std::filesystem::directory_iterator(folder)->path().string(); }

void damage(const std::string& path, std::uint64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x40));
}

}  // namespace

TEST_CASE("a cache in memory makes every record once, at any number of threads") {
  for (const int threads : {0, 1, 3}) {
    auto data = data_of(101);
    auto loader = cached(data, {.memory = std::size_t{1} << 30}, threads);
    CHECK(wrong_records(loader, data) == 0);
    CHECK(loader.cache().misses >= 101);
    // A thread may compute a record that another thread is about to store.
    CHECK(loader.cache().misses <= 101u + (threads == 0 ? 0 : 3 * 16));
    CHECK(wrong_records(loader, data) == 0);
    const muster::cache_statistics before = loader.cache();
    const std::uint64_t reads = data.reads();
    for (int epoch = 0; epoch < 3; ++epoch) CHECK(wrong_records(loader, data) == 0);
    CHECK(loader.cache().misses == before.misses);
    CHECK(loader.cache().hits >= before.hits + 2 * 101);
    CHECK(loader.cache().bytes == 101 * (3000 + sizeof(float)));
    CHECK(data.reads() == reads + 3 * 101);  // reads by the check itself
  }
}

TEST_CASE("a cache that is too small keeps the first records, within its budget, and none of them goes") {
  auto data = data_of(200);
  auto loader = cached(data, {.memory = 80 * 3100}, 1);
  for (int epoch = 0; epoch < 3; ++epoch) CHECK(wrong_records(loader, data) == 0);
  CHECK(loader.cache().bytes <= 80 * 3100);
  CHECK(loader.cache().bytes >= 80 * 3004);
  CHECK(loader.cache().hits >= 2 * 80);  // includes batches that were prepared in advance
  CHECK(loader.cache().hits + loader.cache().misses >= 600);
}

TEST_CASE("of blocks that are made when they are wanted those that were used last are kept") {
  muster::data::detail::lru_cache<std::vector<std::byte>> cache(600);
  int computed = 0;
  const auto get = [&](std::uint64_t key, std::size_t bytes = 100) {
    return cache.get(key, [&] {
      ++computed;
      return std::make_shared<const std::vector<std::byte>>(bytes, static_cast<std::byte>(key));
    });
  };
  const auto first = get(1);
  for (std::uint64_t key = 2; key < 1000; ++key) {
    REQUIRE(get(1) == first);  // recently used, so it stays in the cache
    CHECK(get(key)->front() == static_cast<std::byte>(key));
  }
  CHECK(computed == 999);
  (void)get(999);
  CHECK(computed == 999);
  (void)get(2);  // least recently used
  CHECK(computed == 1000);
  (void)get(2000, 600);  // larger than the whole cache
  (void)get(2000, 600);
  CHECK(computed == 1002);
  (void)get(2);
  CHECK(computed == 1002);
}

TEST_CASE("a cache on disk outlives the process that made it, and says so") {
  temporary_folder folder;
  const muster::cache_options options{.folder = folder / "cache"};
  auto data = data_of(101);
  {
    auto loader = cached(data, options, 2);
    CHECK(wrong_records(loader, data) == 0);
    CHECK(wrong_records(loader, data) == 0);
    CHECK(loader.cache().misses <= 101 + 3 * 16);
  }
  CHECK(files_in(options.folder, ".cache") == 1);
  auto again = cached(data, options, 1, 5);
  CHECK(wrong_records(again, data) == 0);
  CHECK(again.cache().misses == 0);
  CHECK(again.cache().hits >= 101);

  auto over = cached(data, {.memory = std::size_t{1} << 30, .folder = options.folder});
  for (int epoch = 0; epoch < 2; ++epoch) CHECK(wrong_records(over, data) == 0);
  CHECK(over.cache().misses == 0);
  CHECK(over.cache().bytes == 101 * (3000 + sizeof(float)));
}

TEST_CASE("an unfinished cache is gone on with") {
  temporary_folder folder;
  auto data = data_of(101);
  {
    auto loader = cached(data, {.folder = folder / "cache"});
    for (int step = 0; step < 3; ++step) {
      (void)loader.next({});
      loader.commit();
    }
  }
  CHECK(files_in(folder / "cache", ".cache") == 1);
  auto loader = cached(data, {.folder = folder / "cache"});
  CHECK(wrong_records(loader, data) == 0);
  CHECK(loader.cache().hits >= 48);
  CHECK(loader.cache().misses <= 101 - 48);
  CHECK(files_in(folder / "cache", ".cache") == 1);
}

TEST_CASE("other data, another function and an old cache are made anew") {
  temporary_folder folder;
  const std::string where = folder / "cache";
  auto data = data_of(50);
  auto first = cached(data, {.folder = where});
  CHECK(wrong_records(first, data) == 0);
  auto second_data = data_of(50, 1);
  auto second = cached(second_data, {.folder = where});
  CHECK(wrong_records(second, second_data) == 0);
  CHECK(second.cache().hits == 0);
  CHECK(files_in(where, ".cache") == 2);
  auto raw = data | muster::batch(10) | muster::cache(where);
  while (raw.next({})) raw.commit();
  CHECK(raw.cache().hits == 0);
  CHECK(files_in(where, ".cache") == 3);
  auto expired = cached(data, {.folder = where, .fresh_for = muster::seconds(-1)});
  CHECK(wrong_records(expired, data) == 0);
  CHECK(expired.cache().hits == 0);

  const auto unversioned =
      muster::each<std::uint8_t, float>({1}, [](std::span<const std::uint8_t>, std::span<float>) {});
  CHECK_THROWS_WITH(data | muster::batch(10) | muster::map(unversioned) | muster::cache(where), contains("version 0"));
  CHECK_NOTHROW(data | muster::batch(10) | muster::map(unversioned) | muster::cache(muster::in_memory));
  CHECK_THROWS_WITH(data | muster::batch(10) | muster::cache(muster::cache_options{}), contains("stores nothing"));
  const auto by_chance = muster::each<std::uint8_t, float>(
      {1}, [](std::span<const std::uint8_t>, std::span<float>, muster::random_stream&) {});
  CHECK_THROWS_WITH(data | muster::batch(10) | muster::augment(by_chance) | muster::cache(muster::in_memory),
                    contains("cannot follow augment()"));
}

TEST_CASE("a cache on disk knows when files were written in place, replaced, or have their time set back") {
  const temporary_folder folder;
  const std::string images = folder / "images", image = images + "/a/x.jpg", where = folder / "cache";
  std::filesystem::create_directories(images + "/a");
  const auto write = [&](const std::string& text) { std::ofstream(image, std::ios::binary) << text; };
  const auto read = [&](const std::string& folder_name) {
    auto loader = muster::data::any_record_source(muster::data::image_folder(folder_name)) | muster::batch(1) |
                  muster::cache(where);
    const auto batch = loader.next({});
    const auto record = batch.record(0);
    const std::string text(reinterpret_cast<const char*>(record.data()), record.size());
    loader.commit();
    return std::pair(text, loader.cache().hits);
  };
  write("old");
  const auto digest = muster::data::image_folder(images).digest();
  CHECK(read(images) == std::pair(std::string("old"), std::uint64_t{0}));
  CHECK(read(images) == std::pair(std::string("old"), std::uint64_t{1}));
  const auto time = std::filesystem::last_write_time(image);
  write("new");
  std::filesystem::last_write_time(image, time);
  CHECK(read(images) == std::pair(std::string("new"), std::uint64_t{0}));
  std::ofstream(folder / "other", std::ios::binary) << "3rd";
  std::filesystem::last_write_time(folder / "other", time);
  std::filesystem::rename(folder / "other", image);
  CHECK(read(images) == std::pair(std::string("3rd"), std::uint64_t{0}));
  CHECK(read(images) == std::pair(std::string("3rd"), std::uint64_t{1}));
  // Checkpoints and ranks compare digests of the content, which are the same after a copy to another host.
  std::filesystem::copy(images, folder / "copy", std::filesystem::copy_options::recursive);
  CHECK(muster::data::image_folder(folder / "copy").digest() == digest);
  CHECK(muster::data::image_folder(folder / "copy").host_state() != muster::data::image_folder(images).host_state());
  CHECK(read(folder / "copy") == std::pair(std::string("3rd"), std::uint64_t{0}));
}

TEST_CASE("a large file of which the digest has samples is known by its state") {
  const temporary_folder folder;
  const std::string path = folder / "sparse", where = folder / "cache";
  constexpr std::uint64_t stride = std::uint64_t{1} << 26, count = 6;
  const auto write = [&](char label) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff{3} * static_cast<std::streamoff>(stride) + 100'000);
    file.put(label);
  };
  std::ofstream(path).close();
  std::filesystem::resize_file(path, stride * count);
  const auto open = [&] {
    const auto file = std::make_shared<const muster::data::mapped_file>(path);
    return muster::data::fixed_records("sparse",
                                       {muster::data::record_form::fixed, {{"x", muster::dtype::uint8, {1}}}, 0, {}},
                                       {{file, 100'000, stride, count}});
  };
  const auto labels = [&] {
    auto loader = muster::data::any_record_source(open()) | muster::batch(count) | muster::cache(where);
    const auto batch = loader.next({});
    std::string text;
    for (std::size_t i = 0; i < batch.samples.size(); ++i) text += static_cast<char>(batch.record(i)[0]);
    loader.commit();
    return text;
  };
  write('1');
  const auto before = open().digest();
  CHECK(labels().find('1') != std::string::npos);
  write('2');
  CHECK(open().digest() == before);  // as documented
  CHECK(labels().find('2') != std::string::npos);
}

TEST_CASE("what cannot be known to be fresh is kept on disk only for a time that somebody says") {
  struct query : test_records {
    using test_records::test_records;
    [[nodiscard]] std::optional<std::uint64_t> host_state() const { return std::nullopt; }
    [[nodiscard]] std::optional<std::uint64_t> host_state_now() const { return std::nullopt; }
  };
  const temporary_folder folder;
  const std::string where = folder / "cache";
  const muster::data::any_record_source data(query({.size = 5, .shape = {500}}));
  CHECK_THROWS_WITH(data | muster::batch(5) | muster::cache(where),
                    contains("a change of the records would not be detected"));
  CHECK_NOTHROW(data | muster::batch(5) | muster::cache(muster::in_memory));
  for (const std::uint64_t hits : {0, 5}) {
    auto loader = data | muster::batch(5) |
                  muster::cache(muster::cache_options{.folder = where, .fresh_for = muster::seconds(60)});
    while (loader.next({})) loader.commit();
    CHECK(loader.cache().hits == hits);
  }
}

TEST_CASE("a cache file with any byte spoilt gives no wrong record") {
  temporary_folder folder;
  const std::string where = folder / "cache";
  auto data = data_of(20);
  {
    auto loader = cached(data, {.folder = where});
    CHECK(wrong_records(loader, data) == 0);
  }
  const std::string file = the_file(where);
  const std::string copy = folder / "kept";
  std::filesystem::copy_file(file, copy);
  const std::uint64_t size = std::filesystem::file_size(copy);
  const std::uint64_t seed = 3;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int round = 0; round < 150; ++round) {
    std::filesystem::remove_all(where);
    std::filesystem::create_directory(where);
    std::filesystem::copy_file(copy, file);
    if (round % 5 == 0) {
      std::filesystem::resize_file(file, random.below(size));
    } else {
      for (std::uint64_t i = 0; i <= random.below(4); ++i) damage(file, random.below(round % 2 == 0 ? 4300 : size));
    }
    auto loader = cached(data, {.folder = where});
    REQUIRE(wrong_records(loader, data) == 0);
    REQUIRE(wrong_records(loader, data) == 0);
  }
}

TEST_CASE("the ranks of a host fill one cache together") {
  temporary_folder folder;
  const std::string where = folder / "cache";
  auto data = data_of(301);
  std::vector<muster::cache_statistics> statistics(3);
  std::vector<std::size_t> wrong(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      auto loader = cached(data, {.folder = where}, 1);
      for (int epoch = 0; epoch < 4; ++epoch)
        wrong[static_cast<std::size_t>(rank)] += wrong_records(loader, data, {rank, 3});
      statistics[static_cast<std::size_t>(rank)] = loader.cache();
    });
  }
  for (auto& rank : ranks) rank.join();
  CHECK(wrong == std::vector<std::size_t>(3));
  CHECK(files_in(where, ".cache") == 1);
  // In the first epoch each record is computed by the rank that reads it, and later epochs find it in the cache. Ranks
  // at different positions may compute a few records twice.
  std::uint64_t computed = 0;
  for (const auto& rank_statistics : statistics) computed += rank_statistics.misses;
  CHECK(computed >= 301);
  CHECK(computed < 2 * 301);
}

TEST_CASE("caches of a folder that is over its budget go, the least recently used first") {
  temporary_folder folder;
  const std::string where = folder / "cache";
  const std::vector<std::string> foreign = {where + "/pip.cache", where + "/0123456789abcdef.cache"};
  std::filesystem::create_directories(where);
  for (const auto& name : foreign) std::ofstream(name) << "no file of muster's";
  const std::uint64_t cache_bytes = 50 * 3072 + 3 * 4096;
  std::vector<std::string> names;
  for (std::uint64_t version = 0; version < 3; ++version) {
    auto data = data_of(50, version);
    auto loader = cached(data, {.folder = where, .disk = 3 * cache_bytes});
    CHECK(wrong_records(loader, data) == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  {
    auto data = data_of(50, 0);  // a cache in use
    auto loader = cached(data, {.folder = where, .disk = 3 * cache_bytes});
    CHECK(wrong_records(loader, data) == 0);
    CHECK(loader.cache().misses == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  auto data = data_of(50, 3);
  auto loader = cached(data, {.folder = where, .disk = 3 * cache_bytes});
  CHECK(wrong_records(loader, data) == 0);
  CHECK(files_in(where, ".cache") == 3 + foreign.size());
  CHECK(std::ranges::all_of(foreign, [](const auto& name) { return std::filesystem::file_size(name) == 19; }));
  for (const std::uint64_t version : {0u, 2u, 1u}) {
    auto part_data = data_of(50, version);
    auto again = cached(part_data, {.folder = where, .disk = 5 * cache_bytes});
    CHECK(wrong_records(again, part_data) == 0);
    CHECK((again.cache().misses == 0) == (version != 1));
  }

  // A budget that is smaller than all records caches the first records.
  auto part = data_of(50, 9);
  for (int run = 0; run < 2; ++run) {
    auto some = cached(part, {.folder = folder / "part", .disk = cache_bytes / 2});
    CHECK(wrong_records(some, part) == 0);
    CHECK(some.cache().hits == (run == 0 ? 0 : 26));
    CHECK(some.cache().misses == (run == 0 ? 50 : 24));
  }
}

TEST_CASE("a writer killed at any moment leaves a cache that is right") {
  const char* const variable = std::getenv("MUSTER_TEST_KILLS");
  const int kills = variable != nullptr ? std::atoi(variable) : 40;
  const std::uint64_t seed = 21;
  CAPTURE(seed);
  muster::random_stream random(seed);
  temporary_folder folder;
  auto data = data_of(400);
  std::map<std::string, int> files_left;
  for (int kill = 0; kill < kills; ++kill) {
    CAPTURE(kill);
    const std::string where = folder / ("cache" + std::to_string(kill / 4));  // some caches are used again after a kill
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      auto loader = cached(data, {.folder = where}, 0, random());
      for (;;) {
        for (int epoch = 0; epoch < 2; ++epoch) (void)wrong_records(loader, data);
        std::filesystem::remove_all(where);  // start again with an empty cache
        loader = cached(data, {.folder = where}, 0, 1);
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(12000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    if (std::filesystem::exists(where)) {
      for (const auto& found : std::filesystem::directory_iterator(where))
        ++files_left[found.path().extension().string()];
    }
    auto loader = cached(data, {.folder = where});
    REQUIRE(wrong_records(loader, data) == 0);
    if (kill % 4 == 3) {
      REQUIRE(wrong_records(loader, data) == 0);
      REQUIRE(files_in(where, ".cache") == 1);
    }
  }
  CHECK(files_left[".cache"] > kills / 4);  // most processes were killed before the end
}

TEST_CASE("a full disk is a warning, and records that are made anew") {
  temporary_folder folder;
  const std::string where = folder / "small";
  std::filesystem::create_directory(where);
  if (::mount("tmpfs", where.c_str(), "tmpfs", 0, "size=256k") != 0) {
    std::puts("SKIPPED: mounting a small tmpfs takes root");
    return;
  }
  auto data = data_of(200);  // 600 kB
  {
    const test::heard_log log;
    auto loader = cached(data, {.folder = where});
    for (int epoch = 0; epoch < 2; ++epoch) CHECK(wrong_records(loader, data) == 0);
    CHECK(loader.cache().hits == 0);
    CHECK(loader.cache().misses == 400);
    CHECK_THAT(log.text(), contains("No space left on device"));
  }
  {  // a cache that fits is stored on a disk that is nearly full
    std::ofstream(where + "/other") << std::string(100'000, 'x');
    const test::heard_log log;
    auto few = data_of(40);
    auto loader = cached(few, {.folder = where});
    for (int epoch = 0; epoch < 2; ++epoch) CHECK(wrong_records(loader, few) == 0);
    CHECK(loader.cache().hits == 40);
    CHECK(log.text().empty());
    auto second_data = data_of(41);
    auto without_room = cached(second_data, {.folder = where});
    CHECK(wrong_records(without_room, second_data) == 0);
    CHECK_THAT(log.text(), contains("are computed again"));
  }
  ::umount(where.c_str());
}
