#include <muster/data/records/manifest.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>

#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/data/records/manifest_file.hpp>
#include "../files.hpp"
#include "records.hpp"

namespace {

void append(const std::string& folder, const std::vector<muster::data::manifest_entry>& entries) {
  muster::data::detail::manifest_file(muster::data::detail::path_of_manifest(folder), true).append(entries);
}

}  // namespace

TEST_CASE("entries of a manifest are read in the order they came, from several threads too") {
  const temporary_folder folder;
  std::vector<std::jthread> writers;
  for (std::uint64_t writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&, writer] {
      for (std::uint64_t k = 0; k < 20; ++k) {
        append(folder / "", {{"file-" + std::to_string(writer), k, k * 10, ~k}});
      }
    });
  }
  writers.clear();
  const auto entries = muster::data::detail::read_contents(folder / "").entries;
  REQUIRE(entries.size() == 80);
  std::uint64_t next[4] = {};
  for (const auto& entry : entries) {
    const std::size_t writer = static_cast<std::size_t>(entry.file.back() - '0');
    const std::uint64_t k = next[writer]++;
    CHECK(entry == muster::data::manifest_entry{entry.file, k, k * 10, ~k});
  }
}

TEST_CASE("a manifest cut anywhere has the groups that are whole, and the next one goes behind them") {
  const temporary_folder folder;
  // The manifest's size in bytes, and the number of entries.
  std::vector<std::pair<std::size_t, std::size_t>> groups = {{0, 0}};
  for (const std::size_t count : {1, 3, 1, 2}) {
    append(folder / "", std::vector<muster::data::manifest_entry>(count, {"file", count, 2, 3}));
    groups.emplace_back(content_of(folder / "MANIFEST").size(), groups.back().second + count);
  }
  const std::string content = content_of(folder / "MANIFEST");
  for (std::size_t size = 0; size <= content.size(); ++size) {
    std::size_t entries = 0;
    for (const auto& [bytes, count] : groups) entries = size >= bytes ? count : entries;
    REQUIRE(muster::data::detail::contents_of(std::string_view(content).substr(0, size), "MANIFEST").entries.size() ==
            entries);
    folder.write("MANIFEST", content.substr(0, size));
    append(folder / "", {{"new", 9, 9, 9}, {"newer", 9, 9, 9}});
    const auto entries_now = muster::data::detail::read_contents(folder / "").entries;
    REQUIRE(entries_now.size() == entries + 2);
    CHECK(entries_now.back().file == "newer");
  }
}

TEST_CASE("a damaged manifest is refused with the line") {
  const temporary_folder folder;
  for (std::uint64_t k = 0; k < 3; ++k) append(folder / "", {{"file", k, k, k}});
  const std::string content = content_of(folder / "MANIFEST");
  for (std::size_t at = 0; at + 1 < content.size(); ++at) {
    std::string text = content;
    text[at] ^= 2;
    const auto line = 1 + std::count(content.begin(), content.begin() + std::ptrdiff_t(at), '\n');
    if (content[at] == '\n') continue;  // joins two lines, and the error is in the first line
    CAPTURE(at);
    CHECK_THROWS_WITH(muster::data::detail::contents_of(text, "M"), contains("M:" + std::to_string(line) + ":1: "));
  }
  CHECK_THROWS_AS(append(folder / "", {{"../file", 1, 1, 1}}), muster::configuration_error);
  CHECK_THROWS_AS(append(folder / "", {{"a file", 1, 1, 1}}), muster::configuration_error);
  CHECK_THROWS_AS(muster::data::detail::read_contents(folder / "none"), muster::data_error);
}

TEST_CASE("a file that is not the one of the manifest is refused") {
  const temporary_folder folder;
  muster::random_stream random(21);
  const auto schema = schema_of(muster::data::record_form::fixed);
  muster::data::record_set_writer writer(folder / "set", schema);
  append_all(writer, random_records(random, schema, 9));
  writer.commit();
  const std::string path = muster::data::record_files(folder / "set").files().front().path;
  write_file(path, schema, random_records(random, schema, 9));
  CHECK_THROWS_WITH(muster::data::record_files(folder / "set"), contains("does not match the manifest"));
  std::filesystem::remove(path);
  CHECK_THROWS_AS(muster::data::record_files(folder / "set"), muster::data_error);
}

TEST_CASE("a writer killed at any moment leaves all of a commit or nothing") {
  const temporary_folder folder;
  const std::uint64_t seed = 22;
  CAPTURE(seed);
  muster::random_stream random(seed);
  const auto schema = schema_of(muster::data::record_form::bytes);
  const auto records = random_records(random, schema, 40);
  std::size_t most = 0;
  for (int round = 0; round < 60; ++round) {
    const std::string set = folder / ("set" + std::to_string(round % 6));  // each set is written repeatedly
    const pid_t child = ::fork();
    if (child == 0) {
      muster::data::record_set_writer writer(set, schema, {}, 1500);
      for (int k = 0; k < 100; ++k) {
        append_all(writer, records);
        writer.commit();
      }
      ::_exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(100000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    std::error_code ignored;
    const auto size = std::filesystem::file_size(set + "/MANIFEST", ignored);
    if (ignored || size == 0 || muster::data::detail::contents_of(content_of(set + "/MANIFEST"), set).entries.empty())
      continue;
    const muster::data::record_files source(set);
    REQUIRE(source.size() % records.size() == 0);
    most = std::max<std::size_t>(most, source.size());
    for (muster::sample_id id = 0; id < source.size(); ++id) {
      REQUIRE(std::ranges::equal(source.view(id), records[id % records.size()].bytes));
    }
  }
  CHECK(most > 0);
}

TEST_CASE("of two writers that are to be alone in a folder the second one adds nothing") {
  const temporary_folder folder;
  muster::random_stream random(23);
  const auto schema = schema_of(muster::data::record_form::bytes);
  const auto records = random_records(random, schema, 40);
  const auto begin = [&](std::optional<std::uint64_t> work) {
    auto writer = std::make_unique<muster::data::record_set_writer>(folder / "set", schema,
                                                                    muster::data::record_file_options{}, 1500);
    (void)writer->resume(work);
    writer->require_alone();
    append_all(*writer, records);
    return writer;
  };
  auto first = begin(1);
  auto second = begin(2);
  auto third = begin(std::nullopt);
  first->commit();
  CHECK_THROWS_WITH(second->commit(), contains("has records already"));
  CHECK_THROWS_WITH(third->commit(), contains("nothing is overwritten"));
  second.reset();
  third.reset();
  CHECK(muster::data::record_files(folder / "set").size() == records.size());
  const auto files = muster::data::record_files(folder / "set").files().size();
  const auto remaining = std::distance(std::filesystem::directory_iterator(folder / "set"), {});
  CHECK(static_cast<std::size_t>(remaining) == files + 1);  // includes the manifest
  CHECK_THROWS_WITH(begin(3), contains("has records already"));
}

TEST_CASE("the next writer of a folder removes all that a killed one left") {
  const temporary_folder folder;
  muster::random_stream random(24);
  const auto schema = schema_of(muster::data::record_form::bytes);
  const auto records = random_records(random, schema, 40);
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "set"))
      all.push_back(entry.path().filename());
    return all;
  };
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const pid_t child = ::fork();
    if (child == 0) {
      muster::data::record_set_writer writer(folder / "set", schema, {}, 1500);
      (void)writer.resume(round % 2 == 0 ? std::nullopt : std::optional<std::uint64_t>(round));
      for (;;) append_all(writer, records);
    }
    const auto until = muster::deadline_after(muster::seconds(60));
    while (!std::filesystem::exists(folder / "set") || (names().size() < 3 && muster::clock::now() < until))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(20000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    REQUIRE(names().size() >= 3);
    muster::data::record_set_writer writer(folder / "set", schema);
    (void)writer.resume(100);
    CHECK(names().size() == 1);  // its own notes
  }
}
