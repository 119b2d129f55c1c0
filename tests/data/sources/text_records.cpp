// Compares text that is parsed on demand with the same text in memory.
#include <numeric>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/text_format.hpp>
#include "../files.hpp"
#include "catch.hpp"

namespace {

// The results of read() and sizes() for some records.
struct read_result {
  std::vector<std::uint64_t> sizes;
  std::vector<std::byte> bytes;
  std::vector<float> labels;
  std::vector<std::pair<muster::sample_id, std::string>> bad;
  friend bool operator==(const read_result&, const read_result&) = default;
};

read_result read(const muster::data::any_record_source& source, const std::vector<muster::sample_id>& ids) {
  read_result found;
  found.sizes.resize(ids.size());
  source.sizes(ids, found.sizes);
  found.bytes.resize(std::accumulate(found.sizes.begin(), found.sizes.end(), std::size_t{0}));
  found.labels.resize(ids.size());
  std::vector<muster::bad_record> bad;
  source.read(ids, {found.bytes, found.labels}, &bad);
  for (const auto& record : bad) {
    found.bad.emplace_back(record.id, std::to_string(record.location.line) + ":" +
                                          std::to_string(record.location.column) + record.problem);
  }
  return found;
}

muster::data::any_record_source csv_records(const std::string& text, const muster::data::csv_options& csv,
                                            const muster::read_options& options,
                                            const muster::data::detail::text_limits& limits) {
  auto file = std::make_shared<const muster::data::mapped_file>(std::vector<char>(text.begin(), text.end()));
  auto format = muster::data::detail::format_of_csv(file->text(), "t", csv, options);
  return muster::data::detail::records_of_text(std::move(file), std::move(format), "csv:t", options, limits);
}

muster::data::any_record_source libsvm_records(const std::string& text, const muster::read_options& options,
                                               const muster::data::detail::text_limits& limits) {
  auto file = std::make_shared<const muster::data::mapped_file>(std::vector<char>(text.begin(), text.end()));
  return muster::data::detail::records_of_text(std::move(file), muster::data::detail::format_of_libsvm("t", options),
                                               "libsvm:t", options, limits);
}

std::string random_table(muster::random_stream& random) {
  const bool quotes = random.below(2) == 0;
  std::string text = random.below(2) == 0 ? "a,b,label\n" : "";
  const auto rows = 1 + random.below(200);
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (random.below(9) == 0) text += random.below(2) == 0 ? "\n" : " \r\n";
    if (row != 0 && random.below(11) == 0) {  // a bad row, in some cases within quotes
      text += quotes && random.below(2) == 0 ? "1,\"no\n\nnumber\",2\n" : "1,2\n";
      continue;
    }
    for (int column = 0; column < 3; ++column) {
      const std::string number = std::to_string(random.below(1000)) + ".5";
      text += quotes && random.below(3) == 0 ? "\"" + number + "\"" : number;
      text += column != 2 ? "," : random.below(5) == 0 ? "\r\n" : "\n";
    }
  }
  if (random.below(2) == 0) text.pop_back();
  return text;
}

std::string random_sparse(muster::random_stream& random) {
  std::string text;
  const auto rows = 1 + random.below(200);
  for (std::uint64_t row = 0; row < rows; ++row) {
    if (random.below(9) == 0) text += random.below(2) == 0 ? "\n" : "# nothing 3:4\n";
    if (row != 0 && random.below(11) == 0) {
      text += random.below(2) == 0 ? "1 3:1 2:1\n" : "x 1:1 4294967295:2 3:1\n";
      continue;
    }
    text += random.below(2) == 0 ? "+1" : "-1";
    for (std::uint64_t index = 0; index < 12;) {
      index += 1 + random.below(4);
      text += " " + std::to_string(index) + ":" + std::to_string(random.below(100)) + ".25";
    }
    text += random.below(7) == 0 ? " # 5:6\n" : "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("records of text are the same parsed as they are read as in memory, whatever the blocks and threads") {
  muster::random_stream random(11);
  for (int repeat = 0; repeat < 150; ++repeat) {
    const bool table = random.below(2) == 0;
    const std::string text = table ? random_table(random) : random_sparse(random);
    const muster::read_options options{
        .layout = table || random.below(2) == 0 ? muster::layout::automatic : muster::layout::dense,
        .min_features = random.below(2) * 20,
        .threads = 2,
        .keep_bad_records = true};
    const muster::data::detail::text_limits limits{.piece_bytes = 1 + random.below(500),
                                                   .cache_bytes = 1 + random.below(20000)};
    CAPTURE(repeat);
    CAPTURE(text);
    CAPTURE(limits.piece_bytes);
    CAPTURE(limits.cache_bytes);
    const muster::data::csv_options csv{.label = "2", .missing = muster::data::missing_values::nan};
    const muster::data::any_record_source expected_source =
        table ? muster::data::parse_csv(text, "t", csv, options) : muster::data::parse_libsvm(text, "t", options);
    const auto parts = table ? csv_records(text, csv, options, limits) : libsvm_records(text, options, limits);
    REQUIRE(parts.schema() == expected_source.schema());
    REQUIRE(parts.size() == expected_source.size());
    CHECK_FALSE(parts.mapped());
    std::vector<muster::sample_id> ids(expected_source.size());
    std::iota(ids.begin(), ids.end(), muster::sample_id{0});
    const read_result expected = read(expected_source, ids);
    read_result found = read(parts, ids);
    if (expected_source.schema().form == muster::data::record_form::sparse) {
      // A bad line has space for as many entries as colons, and no entries.
      for (const auto& [id, problem] : expected.bad) REQUIRE(found.sizes[id] == 0);
    }
    REQUIRE(found == expected);
    for (auto& id : ids) id = random.below(expected_source.size());
    const read_result mixed = read(expected_source, ids);
    std::vector<std::jthread> threads;
    std::array<bool, 3> equal{};
    for (bool& is_equal : equal) threads.emplace_back([&] { is_equal = read(parts, ids) == mixed; });
    threads.clear();
    REQUIRE(equal == std::array{true, true, true});
  }
}

TEST_CASE("a bad line of text that is parsed as it is read ends the reading, unless bad ones are kept") {
  const std::string text = "1 1:1\n1 2:1 1:1\n";
  const auto strict = libsvm_records(text, {}, {.piece_bytes = 8});
  std::vector<std::byte> bytes(64);
  std::vector<muster::bad_record> bad;
  const muster::sample_id first = 0, second = 1;
  strict.read({&first, 1}, {bytes, {}}, &bad);
  CHECK_THROWS_WITH(strict.read({&second, 1}, {bytes, {}}, &bad), contains("t:2:7: index 1 in '1:1' is out of order"));
  const auto lenient = libsvm_records(text, {.keep_bad_records = true}, {});
  CHECK_THROWS_AS(lenient.read({&second, 1}, {bytes, {}}, nullptr), muster::data_error);
  for (const char* none : {"\n# a:1\n", "1\n2\n"}) {
    CHECK_THROWS_AS(libsvm_records(none, {}, {}), muster::data_error);
  }
  CHECK_THROWS_AS(csv_records("a,b\n\n", {}, {}, {}), muster::data_error);
}

TEST_CASE("the digest of text that is parsed as it is read is of the text and of how it is read") {
  const std::string text = "a,b\n1,2\n3,4\n";
  const auto digest = [&](const std::string& csv_text, const muster::data::csv_options& csv, int threads) {
    return csv_records(csv_text, csv, {.threads = threads}, {.piece_bytes = 4}).digest();
  };
  const auto reference = digest(text, {.label = "b"}, 1);
  CHECK(digest(text, {.label = "b"}, 3) == reference);
  CHECK(digest(text, {.label = "1"}, 1) == reference);
  CHECK(digest(text, {.label = "a"}, 1) != reference);
  CHECK(digest(text, {.ignore = {"b"}}, 1) != reference);
  CHECK(digest(text, {.label = "b", .missing = muster::data::missing_values::zero}, 1) != reference);
  CHECK(digest("a,b\n1,2\n3,5\n", {.label = "b"}, 1) != reference);
}

TEST_CASE("text that is parsed as it is read is shuffled in blocks, and read once an epoch") {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += std::to_string(i) + "," + std::to_string(i % 2) + "\n";
  auto loader = csv_records(text, {.label = "1"}, {}, {.piece_bytes = 300}) | muster::shuffle(3) | muster::batch(64) |
                muster::prefetch(2);
  CHECK(loader.cursor().order == muster::sample_order::block_window);
  std::vector<int> counts(5000);
  while (const auto batch = loader.next({})) {
    for (std::size_t k = 0; k < batch.samples.size(); ++k) {
      const float value = batch.values<float>()[k];
      REQUIRE(value == static_cast<float>(batch.samples[k]));
      ++counts[batch.samples[k]];
    }
    loader.commit();
  }
  CHECK(counts == std::vector<int>(5000, 1));
}

TEST_CASE("open_source() holds small text, and parses large text as it is read, open_dataset() holds any") {
  const temporary_folder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(i) + ",0.25\n";
  const auto small = muster::open_source("csv:" + folder.write("small", text));
  CHECK(small.mapped());
  CHECK(small.known_bad() == 0);
  std::string large = text;
  while (large.size() <= muster::data::detail::most_text_in_memory) large += large;
  const auto streamed = muster::open_source("csv:" + folder.write("large", large));
  CHECK_FALSE(streamed.mapped());
  CHECK(streamed.block_records() != 0);
  // The records and labels of a window of the default order fit into the cache. Otherwise each read would parse a
  // block.
  CHECK(16 * streamed.block_records() * (streamed.schema().record_bytes() + sizeof(float)) <
        muster::data::detail::text_limits{}.cache_bytes);
  CHECK_FALSE(streamed.known_bad().has_value());
  const muster::sample_id id = streamed.size() - 1;
  float values[2] = {};
  streamed.read({&id, 1}, {std::as_writable_bytes(std::span(values)), {}});
  CHECK(values[0] == 99);
}
