#include <muster/data/source_statistics.hpp>

#include <limits>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/dataset_builder.hpp>
#include <muster/data/open.hpp>
#include <muster/data/pipeline.hpp>
#include <muster/data/records/reader.hpp>
#include <muster/data/records/writer.hpp>
#include <muster/data/sources/csv.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/standardise.hpp>
#include "catch.hpp"
#include "files.hpp"

namespace {

// Computes the statistics in two passes in long double.
void check_column(const muster::column_statistics& found, const std::vector<double>& values) {
  REQUIRE(found.count == values.size());
  if (values.empty()) return;
  long double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const long double mean = sum / static_cast<long double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  const auto deviation = std::sqrt(static_cast<double>(squares / static_cast<long double>(values.size())));
  CHECK(found.mean == Approx(static_cast<double>(mean)).epsilon(1e-12).margin(1e-12));
  CHECK(found.deviation() == Approx(deviation).epsilon(1e-9).margin(1e-12));
  CHECK(found.least == *std::ranges::min_element(values));
  CHECK(found.greatest == *std::ranges::max_element(values));
}

muster::dataset random_table(std::size_t rows, std::size_t features, std::uint64_t seed) {
  muster::random_stream random(seed);
  auto builder = muster::data::dataset_builder::dense("made", rows, features);
  for (std::size_t row = 0; row < rows; ++row) {
    builder.labels()[row] = static_cast<float>(random.below(5));
    for (float& value : builder.row(row)) value = 1e4f + static_cast<float>(random.normal());
  }
  return builder.finish();
}

void write_images(const std::string& path, std::size_t count, std::uint64_t seed) {
  muster::random_stream random(seed);
  muster::data::record_set_writer writer(
      path, {muster::data::record_form::fixed, {{"image", muster::dtype::uint8, {3, 4, 5}}}, 0, {"label"}});
  std::vector<std::byte> bytes(60);
  for (std::size_t k = 0; k < count; ++k) {
    for (std::size_t n = 0; n < bytes.size(); ++n) bytes[n] = std::byte(random.below(50 + 100 * (n / 20)));
    const float label = static_cast<float>(k % 3);
    writer.append(bytes, {&label, 1});
  }
  writer.commit();
}

}  // namespace

TEST_CASE("statistics are those of two passes in long double, the same bits for any number of threads") {
  for (const std::size_t rows : {1, 7, 1000, 5000}) {
    const muster::dataset table = random_table(rows, 3, rows);
    const auto found = muster::statistics(table, 1);
    CHECK(muster::statistics(table, 3) == found);
    CHECK(found.records == rows);
    REQUIRE(found.columns.size() == 3);
    for (std::size_t column = 0; column < 3; ++column) {
      std::vector<double> values;
      for (std::size_t row = 0; row < rows; ++row) values.push_back(double{table.row(row)[column]});
      check_column(found.columns[column], values);
    }
    check_column(found.label, {table.labels().begin(), table.labels().end()});
    for (const auto& [label, count] : found.histogram)
      CHECK(count == static_cast<std::uint64_t>(std::ranges::count(table.labels(), label)));
    CHECK(found.histogram.size() == table.classes().size());
  }
}

TEST_CASE("what sparse records do not give is zero: their statistics are those of the same dense ones") {
  const std::string text = "1 2:3 4:-1\n2 1:5\n1 4:2 2:1\n0\n";
  const std::string sorted = "1 2:3 4:-1\n2 1:5\n1 2:1 4:2\n0\n";
  CHECK_THROWS_AS(muster::statistics(muster::data::parse_libsvm(text, "s")), muster::data_error);
  const auto sparse = muster::statistics(muster::data::parse_libsvm(sorted, "s", {.layout = muster::layout::sparse}));
  const auto dense = muster::statistics(muster::data::parse_libsvm(sorted, "s", {.layout = muster::layout::dense}));
  REQUIRE(sparse.columns.size() == 4);
  for (std::size_t k = 0; k < 4; ++k) {
    CHECK(sparse.columns[k].count == 4);
    CHECK(sparse.columns[k].mean == Approx(dense.columns[k].mean));
    CHECK(sparse.columns[k].squares == Approx(dense.columns[k].squares));
    CHECK(sparse.columns[k].least == dense.columns[k].least);
    CHECK(sparse.columns[k].greatest == dense.columns[k].greatest);
  }
  CHECK(sparse.histogram == dense.histogram);
  const auto wide =
      muster::statistics(muster::data::parse_libsvm("1 1:2\n0 70000:4\n", "s", {.layout = muster::layout::sparse}));
  REQUIRE(wide.columns.size() == 1);
  CHECK(wide.columns[0].count == 140000);
  CHECK(wide.columns[0].mean == Approx(6.0 / 140000));
}

TEST_CASE("bad records and numbers that are not finite do not count, and many labels have no histogram") {
  const auto table =
      muster::data::parse_csv("1,2\nx,1\n?,4\n5,2\n", "t", {.label = "1", .missing = muster::data::missing_values::nan},
                              {.keep_bad_records = true});
  const auto found = muster::statistics(table);
  CHECK(found.records == 3);
  CHECK(found.left_out == 1);
  check_column(found.columns[0], {1, 5});
  check_column(found.label, {2, 4, 2});
  CHECK(found.histogram == std::map<float, std::uint64_t>{{2, 2}, {4, 1}});
  std::string many;
  for (int k = 0; k < 5000; ++k) many += std::to_string(k) + ",1\n";
  const auto numbers = muster::statistics(muster::data::parse_csv(many, "t", {.label = "0"}));
  CHECK(numbers.histogram.empty());
  CHECK(numbers.label.count == 5000);
  const temporary_folder folder;
  muster::data::record_file_writer bytes(folder / "bytes.muster", {muster::data::record_form::bytes, {}, 0, {}});
  bytes.append({}, {});
  bytes.commit();
  CHECK_THROWS_AS(muster::statistics(muster::open_source("records:" + (folder / "bytes.muster"))),
                  muster::configuration_error);
}

TEST_CASE("a folder of records keeps its statistics, and what is appended to it alone is read for them") {
  const temporary_folder folder;
  const std::string path = folder / "set";
  write_images(path, 500, 1);
  const std::string name = "records:" + path;
  CHECK_FALSE(muster::open_source(name).known_statistics().has_value());
  const auto first = muster::statistics(muster::open_source(name));
  REQUIRE(first.columns.size() == 3);
  CHECK(first.columns[2].greatest > first.columns[0].greatest);
  muster::keep_statistics(path, first);
  CHECK(muster::open_source(name).known_statistics() == first);
  CHECK(muster::data::record_files(path).size() == 500);  // other readers of the manifest still see the same files
  write_images(path, 200, 2);
  auto grown = muster::open_source(name);
  CHECK(grown.known_statistics() == first);
  auto expected = first;
  write_images(folder / "more", 200, 2);
  expected.merge(muster::statistics(muster::open_source("records:" + (folder / "more"))));
  {  // damage that is not detected while the statistics are not read
    std::fstream file(muster::data::record_files(path).files()[0].path,
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096).put('\x7f');
  }
  const auto second = muster::statistics(grown);
  CHECK(second.records == 700);
  CHECK(second.left_out == 0);
  CHECK(second.histogram == expected.histogram);
  for (std::size_t k = 0; k < 3; ++k) {
    CHECK(second.columns[k].count == expected.columns[k].count);
    CHECK(second.columns[k].mean == Approx(expected.columns[k].mean).epsilon(1e-12));
    CHECK(second.columns[k].squares == Approx(expected.columns[k].squares).epsilon(1e-12));
  }
  muster::keep_statistics(path, second);
  CHECK(muster::statistics(muster::open_source(name)) == second);

  auto fewer = second;
  fewer.columns.pop_back();
  muster::keep_statistics(path, fewer);
  CHECK_THROWS_AS(muster::statistics(muster::open_source(name)), muster::data_error);

  CHECK(muster::data::detail::statistics_from_text(muster::data::detail::to_text(second), "t") == second);
  for (const char* wrong : {"", "{}", "[1]", R"({"records":1,"left_out":0,"label":[1],"columns":[],"histogram":[]})"})
    CHECK_THROWS_AS(muster::data::detail::statistics_from_text(wrong, "t"), muster::data_error);
}

TEST_CASE("standardise makes columns of mean 0 and deviation 1, of tables and of images") {
  const muster::dataset table = random_table(600, 4, 9);
  auto loader = table | muster::batch(600);
  auto pipeline = std::move(loader) | muster::standardise_by_source{};
  const auto batch = pipeline.next({});
  const auto values = batch.values<float>();
  for (std::size_t column = 0; column < 4; ++column) {
    muster::column_statistics found;
    for (std::size_t row = 0; row < 600; ++row) found.add(double{values[4 * row + column]});
    CHECK(std::abs(found.mean) < 2e-3);  // the resolution of a float at 1e4 is 1e-3
    CHECK(found.deviation() == Approx(1).epsilon(1e-3));
  }
  const auto constant = muster::data::parse_csv("7,1\n7,2\n", "t");
  auto constant_pipeline = constant | muster::batch(2) | muster::map(muster::standardise(muster::statistics(constant)));
  CHECK(constant_pipeline.next({}).values<float>()[0] == 0);

  const temporary_folder folder;
  write_images(folder / "set", 300, 3);
  auto images = muster::open_source("records:" + (folder / "set")) | muster::batch(300) |
                muster::standardise_by_source{.output = muster::image_layout::chw};
  const auto pixels = images.next({}).values<float>();
  for (std::size_t channel = 0; channel < 3; ++channel) {
    muster::column_statistics found;
    for (std::size_t k = 0; k < 300; ++k) {
      for (std::size_t n = 0; n < 20; ++n) found.add(double{pixels[60 * k + 20 * channel + n]});
    }
    CHECK(std::abs(found.mean) < 1e-5);
    CHECK(found.deviation() == Approx(1).epsilon(1e-5));
  }
  const auto by_first = muster::statistics(table);
  auto growing = table | muster::batch(600) | muster::map(muster::standardise(by_first));
  growing.next_epoch(random_table(50, 4, 1));  // the statistics do not change when the data grow
  const auto grown = growing.next({});
  REQUIRE(grown.samples.size() == 50);
  const double first = double{random_table(50, 4, 1).row(49)[3]};
  const auto& column = by_first.columns[3];
  CHECK(grown.values<float>()[199] == Approx((first - column.mean) / column.deviation()).margin(2e-3));
  CHECK_THROWS_AS(table | muster::batch(1) | muster::map(muster::standardise(muster::statistics(constant))),
                  muster::configuration_error);
  const auto sparse = muster::data::parse_libsvm("1 1:2\n0 9:4\n", "s", {.layout = muster::layout::sparse});
  CHECK_THROWS_AS(sparse | muster::batch(1) | muster::standardise_by_source{}, muster::configuration_error);
}
