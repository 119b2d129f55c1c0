// Tests Parquet files, which the test writes. tests/data/sources/package_parquet.py compares drawn files with pyarrow.
#include <muster/data/open.hpp>

#include "../files.hpp"
#include "catch.hpp"

#ifdef MUSTER_HAS_PARQUET

#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>

#include <arrow/io/file.h>
#include <parquet/column_writer.h>
#include <parquet/file_writer.h>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/sources/parquet.hpp>

namespace {

constexpr std::int64_t columns = 12;

float value_of(std::int64_t row, std::int64_t column) {
  return static_cast<float>(row) + static_cast<float>(column) / 16;
}
bool is_missing(std::int64_t row, std::int64_t column) { return row % 1001 == 17 && column == 3; }

/// Writes rows `first` to `last` - 1 of a table: a float column "y" with the row's number, and floats, of which some
/// are missing.
void write_table(const std::string& path, std::int64_t first, std::int64_t last, std::int64_t group_rows,
                 bool has_missing) {
  using parquet::schema::GroupNode;
  using parquet::schema::PrimitiveNode;
  parquet::schema::NodeVector nodes = {PrimitiveNode::Make("y", parquet::Repetition::REQUIRED, parquet::Type::FLOAT)};
  for (std::int64_t k = 0; k < columns; ++k)
    nodes.push_back(PrimitiveNode::Make("x" + std::to_string(k), parquet::Repetition::OPTIONAL, parquet::Type::FLOAT));
  const auto schema = std::static_pointer_cast<GroupNode>(GroupNode::Make("t", parquet::Repetition::REQUIRED, nodes));
  const auto properties =
      parquet::WriterProperties::Builder().data_pagesize(5000)->write_batch_size(256)->disable_dictionary()->build();
  auto writer =
      parquet::ParquetFileWriter::Open(arrow::io::FileOutputStream::Open(path).ValueOrDie(), schema, properties);
  for (; first < last; first += group_rows) {
    const std::int64_t end = std::min(last, first + group_rows);
    auto* const group = writer->AppendRowGroup();
    for (std::int64_t k = -1; k < columns; ++k) {
      std::vector<float> values;
      std::vector<std::int16_t> levels;
      for (std::int64_t row = first; row < end; ++row) {
        levels.push_back(has_missing && is_missing(row, k) ? 0 : 1);
        if (levels.back() == 1) values.push_back(k < 0 ? static_cast<float>(row) : value_of(row, k));
      }
      static_cast<parquet::FloatWriter*>(group->NextColumn())
          ->WriteBatch(end - first, k < 0 ? nullptr : levels.data(), nullptr, values.data());
    }
  }
  writer->Close();
}

void check_row(std::span<const float> values, float label) {
  for (std::int64_t k = 0; k < columns; ++k)
    REQUIRE(values[static_cast<std::size_t>(k)] == value_of(static_cast<std::int64_t>(label), k));
}

}  // namespace

TEST_CASE("records of Parquet files are the rows, in any order and at any place") {
  const temporary_folder folder;
  std::filesystem::create_directory(folder / "set");
  constexpr std::int64_t rows = 400'000;  // 19 MiB: several blocks
  write_table(folder / "set/a.parquet", 0, 150'000, 70'000, false);
  write_table(folder / "set/b.parquet", 150'000, 150'000, 70'000, false);  // no rows
  write_table(folder / "set/c.parquet", 150'000, rows, 1'000'000, false);
  const auto source = muster::open_source("parquet:" + (folder / "set") + "?label=y");
  REQUIRE(source.size() == rows);
  CHECK(to_string(source.schema()) == "features float32[12], label label");
  CHECK(source.columns().features.front() == "x0");
  CHECK(source.host_state() == source.host_state_now());
  muster::random_stream random(Catch::rngSeed(), 0);
  for (int round = 0; round < 300; ++round) {  // single places, each with readers that begin within a row group
    const std::array<muster::sample_id, 3> ids = {random.below(rows), random.below(rows), rows - 1};
    std::array<float, 3 * columns> values{};
    std::array<float, 3> labels{};
    source.read(ids, {std::as_writable_bytes(std::span(values)), labels});
    for (std::size_t k = 0; k < ids.size(); ++k) {
      REQUIRE(labels[k] == static_cast<float>(ids[k]));
      check_row(std::span(values).subspan(k * columns, columns), labels[k]);
    }
  }
  for (const bool shuffled : {false, true}) {
    auto loader = shuffled ? source | muster::shuffle(5) | muster::batch(1000) : source | muster::batch(1000);
    CHECK((loader.cursor().order == muster::sample_order::block_window) == shuffled);
    std::vector<bool> seen(rows);
    muster::cursor middle;
    std::vector<muster::sample_id> after_middle;
    while (true) {
      if (loader.cursor().position == rows / 2) middle = loader.cursor();
      for (const muster::batch_shard& part :
           {muster::batch_shard{0, 3}, muster::batch_shard{1, 3}, muster::batch_shard{2, 3}}) {
        const auto batch = loader.next(part);
        if (!batch) break;
        for (std::size_t k = 0; k < batch.samples.size(); ++k) {
          REQUIRE_FALSE(seen[batch.samples[k]]);
          seen[batch.samples[k]] = true;
          if (loader.cursor().position >= rows / 2 && after_middle.size() < 1000)
            after_middle.push_back(batch.samples[k]);
          REQUIRE(batch.labels[k] == static_cast<float>(batch.samples[k]));
          check_row(batch.values<float>().subspan(k * columns, columns), batch.labels[k]);
        }
      }
      if (!loader.next({0, 1})) break;
      loader.commit();
    }
    CHECK(std::accumulate(seen.begin(), seen.end(), std::int64_t{0}) == rows);
    loader.open(middle);
    const auto again = loader.next({0, 1});
    CHECK(std::ranges::equal(again.samples, after_middle));
  }
  CHECK(muster::statistics(source, 1) == muster::statistics(source, 3));
}

TEST_CASE("a row of a Parquet file with a missing value is bad by its row") {
  const temporary_folder folder;
  write_table(folder / "t.parquet", 0, 20'000, 6'000, true);
  const auto source = muster::open_source("parquet:" + (folder / "t.parquet") + "?label=y");
  CHECK_THROWS_WITH((void)muster::load(source),
                    contains("t.parquet:18: a value is missing in column 'x3' of row group 0"));
  auto loader = source | muster::shuffle(1) | muster::batch(100) |
                muster::on_bad_records({.policy = muster::bad_record_policy::skip});
  std::set<muster::sample_id> left;
  while (const auto batch = loader.next({0, 1})) {
    left.insert(batch.samples.begin(), batch.samples.end());
    loader.commit();
  }
  CHECK(left.size() == 20'000 - 20);
  CHECK_FALSE(left.contains(1018));
  const auto filled = muster::open_dataset("parquet:" + (folder / "t.parquet") + "?label=y&missing=nan");
  CHECK(std::isnan(filled.row(1018)[3]));
  CHECK(filled.row(1018)[4] == value_of(1018, 4));
  CHECK(muster::open_dataset("parquet:" + (folder / "t.parquet") + "?label=y&missing=zero").row(17)[3] == 0);
  const auto part = muster::open_source("parquet:" + (folder / "t.parquet") + "?columns=x5,x2");
  CHECK(part.columns().features == std::vector<std::string>{"x2", "x5"});  // in the order of the file
  CHECK(part.schema().labels.empty());
  CHECK(part.digest() != source.digest());
}

TEST_CASE("a Parquet file is written completely or not at all") {
  const temporary_folder folder;
  const std::string path = folder / "t.parquet";
  const muster::data::record_schema schema{
      muster::data::record_form::fixed, {{"x", muster::dtype::int16, {2, 3}}}, 0, {"label"}, {"cat", "dog"}};
  std::array<std::int16_t, 6> record{1, -2, 3, -4, 5, -6};
  const std::array<float, 1> labels{1};
  const auto bytes = std::as_bytes(std::span(record));
  {
    const auto writer = muster::data::create_parquet(path, schema);
    CHECK_THROWS_AS(writer->append(bytes.first(10), labels), muster::configuration_error);
    CHECK_THROWS_AS(writer->append(bytes, {}), muster::configuration_error);
    CHECK_THROWS_WITH(writer->commit(), contains("would have no records"));
    CHECK_FALSE(std::filesystem::exists(path));
  }
  {
    const auto writer = muster::data::create_parquet(path, schema);
    writer->append(bytes, labels);
  }
  CHECK_FALSE(std::filesystem::exists(path));
  const auto writer = muster::data::create_parquet(path, schema, {.label = "kind"}, {.block_bytes = 1});
  for (int k = 0; k < 3; ++k, ++record[0]) writer->append(bytes, labels);
  const std::uint64_t size = writer->commit();
  CHECK(size == std::filesystem::file_size(path));
  const auto source = muster::open_source("parquet:" + path + "?label=kind");
  CHECK(source.schema() == schema);
  REQUIRE(source.size() == 3);
  std::vector<std::int16_t> found(18);
  const std::array<muster::sample_id, 3> ids{2, 0, 1};
  source.read(ids, {std::as_writable_bytes(std::span(found)), {}});
  CHECK(found == std::vector<std::int16_t>{3, -2, 3, -4, 5, -6, 1, -2, 3, -4, 5, -6, 2, -2, 3, -4, 5, -6});
  CHECK_THROWS_WITH(muster::data::create_parquet(path, schema, {}, {.alignment = 64}), contains("no alignment"));
  CHECK_THROWS_WITH(muster::data::create_parquet(path, schema, {.label = "x"}), contains("two columns 'x'"));
}

#else

#include <muster/data/sources/parquet.hpp>

TEST_CASE("a Parquet file is refused by name without the component") {
  CHECK_THROWS_WITH(muster::open_source("parquet:t.parquet"),
                    contains("this program was linked without muster::parquet"));
  CHECK_THROWS_WITH(muster::data::create_parquet("t.parquet", {}),
                    contains("'t.parquet' cannot be written (this program was linked without muster::parquet)"));
}

#endif
