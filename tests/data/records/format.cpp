// Tests of files in muster's own format: written records are read, and damaged files are refused.
#include <filesystem>

#include <muster/core/error.hpp>
#include "../files.hpp"
#include "records.hpp"

namespace {

constexpr muster::data::record_form forms[] = {muster::data::record_form::fixed, muster::data::record_form::bytes,
                                               muster::data::record_form::sparse};

std::vector<muster::data::record_file_options> all_options() {
  std::vector<muster::data::record_file_options> all = {{}, {.alignment = 1}, {.alignment = 256}};
#ifdef MUSTER_HAS_ZSTD
  all.push_back({.block_bytes = 1});
  all.push_back({.block_bytes = 500});
  all.push_back({.alignment = 32, .block_bytes = 1 << 20, .level = 9});
#endif
  return all;
}

}  // namespace

TEST_CASE("records of every form are read as they were written, whatever the options") {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    for (const auto form : forms) {
      const temporary_folder folder;
      const auto schema = schema_of(form);
      const auto records = random_records(random, schema, 1 + random.below(200));
      std::uint64_t digest = 0;
      for (const auto& options : all_options()) {
        const std::string path = folder / "file.muster";
        const auto summary = write_file(path, schema, records, options);
        const muster::data::record_files source(path, {.block_cache_bytes = 700});
        CHECK(summary.records == records.size());
        CHECK(summary.bytes == std::filesystem::file_size(path));
        CHECK(source.schema() == schema);
        CHECK(source.mapped() == (options.block_bytes == 0));
        CHECK(source.digest() == summary.digest);
        if (digest != 0) CHECK(digest == source.digest());
        digest = source.digest();
        check_source(source, records, seed);
        if (!source.mapped()) continue;
        const std::size_t alignment = options.alignment != 0 ? options.alignment : 8;
        for (muster::sample_id id = 0; id < source.size(); ++id) {
          REQUIRE(reinterpret_cast<std::uintptr_t>(source.view(id).data()) % alignment == 0);
        }
      }
    }
  }
}

TEST_CASE("a folder of files has the digest of one file with the same records") {
  const temporary_folder folder;
  muster::random_stream random(7);
  const auto schema = schema_of(muster::data::record_form::bytes);
  const auto records = random_records(random, schema, 300);
  const auto written = write_file(folder / "file.muster", schema, records);
  {
    muster::data::record_set_writer writer(folder / "set", schema, {}, 2000);
    append_all(writer, records);
    writer.commit();
    writer.commit();  // has no effect
  }
  const muster::data::record_files source(folder / "set");
  CHECK(source.files().size() > 10);
  CHECK(source.digest() == written.digest);
  check_source(source, records, 8);

  auto swapped = records;
  std::swap(swapped[3], swapped[200]);
  CHECK(write_file(folder / "swapped.muster", schema, swapped).digest != written.digest);
  auto labelled = random_records(random, schema_of(muster::data::record_form::fixed), 5);
  const auto before = write_file(folder / "labelled", schema_of(muster::data::record_form::fixed), labelled).digest;
  labelled[2].labels[0] += 1;
  CHECK(write_file(folder / "labelled", schema_of(muster::data::record_form::fixed), labelled).digest != before);
}

TEST_CASE("a growing folder is what it was when it was opened, and more when opened again") {
  const temporary_folder folder;
  muster::random_stream random(9);
  const auto schema = schema_of(muster::data::record_form::sparse);
  std::vector<expected_record> all;
  std::vector<std::pair<muster::data::record_files, std::vector<expected_record>>> opened;
  for (int round = 0; round < 4; ++round) {
    const auto more = random_records(random, schema, 1 + random.below(20));
    muster::data::record_set_writer writer(folder / "set", schema);
    append_all(writer, more);
    // A file is visible only after commit().
    if (round > 0) CHECK(muster::data::record_files(folder / "set").size() == all.size());
    writer.commit();
    all.insert(all.end(), more.begin(), more.end());
    opened.emplace_back(muster::data::record_files(folder / "set"), all);
  }
  for (const auto& [source, records] : opened) check_source(source, records, 10);
  CHECK_THROWS_WITH(muster::data::record_set_writer(folder / "set", schema_of(muster::data::record_form::bytes)),
                    contains("has records of another schema"));
}

TEST_CASE("what cannot be written is refused, and leaves no file") {
  const temporary_folder folder;
  const auto schema = schema_of(muster::data::record_form::fixed);
  const std::string path = folder / "file.muster";
  using muster::configuration_error;
  using options = muster::data::record_file_options;
  const std::vector<std::byte> record(schema.record_bytes());
  const float labels[] = {1, 2};
  {
    muster::data::record_file_writer writer(path, schema);
    CHECK_THROWS_AS(writer.commit(), configuration_error);
    CHECK_THROWS_WITH(writer.append(std::span(record).first(3), {labels, 1}), contains("has 3 bytes, and the schema"));
    CHECK_THROWS_WITH(writer.append(record, labels), contains("has 2 labels, and the schema 1"));
  }
  CHECK_THROWS_AS(muster::data::record_file_writer(path, schema, options{.alignment = 3}), configuration_error);
  CHECK_THROWS_AS(muster::data::record_file_writer(path, schema, options{.alignment = 8192}), configuration_error);
  CHECK_THROWS_AS(muster::data::record_file_writer(path, {muster::data::record_form::fixed, {}, 0, {}}),
                  configuration_error);
  CHECK_THROWS_AS(muster::data::record_file_writer(folder / "none/file", schema), configuration_error);
  CHECK_THROWS_AS(muster::data::record_set_writer(folder.write("a file", "x"), schema), configuration_error);
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a file that ends too early is refused, whatever is missing") {
  const temporary_folder folder;
  muster::random_stream random(11);
  for (const auto form : forms) {
    const auto schema = schema_of(form);
    write_file(folder / "file", schema, random_records(random, schema, 20));
    const std::string content = content_of(folder / "file");
    for (std::size_t size = 1; size < content.size(); size += 1 + (size > 200 && size < 4000 ? random.below(100) : 0)) {
      std::filesystem::remove(folder / "cut");
      const std::string path = folder.write("cut", std::string_view(content).substr(0, size));
      CAPTURE(size);
      CHECK_THROWS_WITH(muster::data::record_files(path), contains("cut: byte "));
    }
    // A file system may leave zeros if it writes the size of a file before the contents.
    std::string zeros = content;
    std::fill(zeros.begin() + std::ptrdiff_t(random.below(content.size() - 64)), zeros.end(), '\0');
    CHECK_THROWS_AS(muster::data::record_files(folder.write("zeros", zeros)), muster::data_error);
    CHECK_THROWS_AS(muster::data::record_files(folder.write("longer", content + '\0')), muster::data_error);
  }
}

TEST_CASE("a byte that changed anywhere is found, and where it is told", "[slow]") {
  const temporary_folder folder;
  muster::random_stream random(12);
  for (const auto& options : all_options()) {
    for (const auto form : forms) {
      const auto schema = schema_of(form);
      auto records = random_records(random, schema, 15);
      write_file(folder / "file", schema, records, options);
      const std::string content = content_of(folder / "file");
      const muster::data::record_files good(folder / "file");
      const std::vector<muster::sample_id> ids = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
      std::vector<std::uint64_t> sizes(ids.size());
      good.sizes(ids, sizes);
      std::size_t total = 0, found = 0, refused = 0, harmless = 0;
      for (const std::uint64_t size : sizes) total += size;
      for (std::size_t at = 0; at < content.size(); at += at < 300 || at >= 4096 ? 1 + random.below(5) : 97) {
        std::string text = content;
        text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^ (1u << random.below(8)));
        std::filesystem::remove(folder / "damaged");  // overwriting a file is slow on some file systems
        const std::string path = folder.write("damaged", text);
        try {
          const muster::data::record_files source(path);
          std::vector<std::byte> bytes(total);
          std::vector<float> labels(ids.size() * schema.labels.size());
          std::vector<muster::bad_record> bad;
          source.read(ids, {bytes, labels}, &bad);
          for (const auto& record : bad) {
            REQUIRE(record.location.file == path);
            REQUIRE(record.location.offset);
            REQUIRE(*record.location.offset <= at);
          }
          ++(bad.empty() ? harmless : found);
          std::size_t offset = 0;
          for (std::size_t k = 0; k < ids.size(); offset += sizes[k++]) {
            const bool is_bad = std::any_of(bad.begin(), bad.end(), [&](const auto& b) { return b.id == ids[k]; });
            if (is_bad) continue;
            REQUIRE(
                std::equal(records[k].bytes.begin(), records[k].bytes.end(), bytes.begin() + std::ptrdiff_t(offset)));
            REQUIRE(std::equal(records[k].labels.begin(), records[k].labels.end(),
                               labels.begin() + std::ptrdiff_t(k * schema.labels.size())));
          }
        } catch (const muster::data_error& error) {
          REQUIRE(error.file() == path);
          REQUIRE(error.where().offset);
          ++refused;
        }
      }
      CHECK(refused > 50);
      CHECK(found > 20);
      CHECK(harmless > 10);  // padding between header and records, and between records
    }
  }
}

TEST_CASE("a damaged record is bad, and no other is") {
  const temporary_folder folder;
  muster::random_stream random(13);
  const auto schema = schema_of(muster::data::record_form::fixed);
  auto records = random_records(random, schema, 50);
  write_file(folder / "file", schema, records);
  std::string text = content_of(folder / "file");
  const muster::data::record_files good(folder / "file");
  const auto first = good.view(0);
  for (const std::size_t id : {std::size_t{3}, std::size_t{20}, std::size_t{49}}) {
    const auto at = static_cast<std::size_t>(good.view(id).data() - first.data());
    text[4096 + at + random.below(34)] ^= 1;
    records[id].bad = true;
    std::fill(records[id].bytes.begin(), records[id].bytes.end(), std::byte{0});
    records[id].labels = {0};
  }
  const muster::data::record_files damaged(folder.write("damaged", text));
  std::vector<std::byte> bytes(34);
  std::vector<float> label(1);
  const muster::sample_id id = 20;
  CHECK_THROWS_WITH(damaged.read({&id, 1}, {bytes, label}), contains("damaged: byte 4896: record 20 does not match"));
  CHECK_THROWS_AS(damaged.view(20), muster::data_error);
  CHECK_NOTHROW(
      muster::data::record_files(folder / "damaged", {.checks = muster::data::record_checks::never}).view(20));
}

#ifdef MUSTER_HAS_ZSTD
TEST_CASE("a compressed block of empty records is read") {
  const temporary_folder folder;
  std::vector<expected_record> records(4);
  records[0].bytes.resize(500);  // the first block; the other records are in the second block
  write_file(folder / "file", schema_of(muster::data::record_form::bytes), records, {.block_bytes = 500});
  check_source(muster::data::record_files(folder / "file"), records, 14);
}
#endif
