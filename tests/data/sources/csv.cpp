#include <muster/data/sources/csv.hpp>

#include <charconv>
#include <cmath>
#include <limits>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include "../../../src/data/sources/text.hpp"
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"

namespace {

using muster::csv_options;
using muster::parse_csv;

std::vector<float> values_of(const muster::dataset& data) {
  std::vector<float> all;
  for (std::size_t i = 0; i < data.size(); ++i) all.insert(all.end(), data.row(i).begin(), data.row(i).end());
  return all;
}

std::vector<float> labels_of(const muster::dataset& data) { return {data.labels().begin(), data.labels().end()}; }

std::string random_number(muster::random_stream& random) {
  char text[64];
  const double value = (double(random.below(2'000'001)) - 1e6) * std::pow(10.0, double(random.below(40)) - 30);
  constexpr const char* formats[] = {"%.6g", "%.9g", "%.17g", "%.3f", "%.0f", "%e"};
  std::snprintf(text, sizeof text, formats[random.below(6)], value);
  return text;
}

float exactly(const std::string& word) {
  float value = 0;
  const auto result = std::from_chars(word.data(), word.data() + word.size(), value);
  return result.ec == std::errc::result_out_of_range ? 0.0f : value;  // none is too large here
}

}  // namespace

TEST_CASE("a table has its columns by name or number, with a header or without") {
  const std::string text = "id, a ,\"the \"\"label\"\"\",b\nx7,1,-1,2\n\"y,\n8\",3,+1,4\r\n\n , .5, 0 , 1e1";
  const auto read = parse_csv(text, "t", {.label = "the \"\"label\"\"", .ignore = {"id"}});
  CHECK(values_of(read) == std::vector<float>{1, 2, 3, 4, 0.5, 10});
  CHECK(labels_of(read) == std::vector<float>{-1, 1, 0});
  CHECK(parse_csv(text, "t", {.label = "2", .ignore = {"0"}}).digest() == read.digest());
  const auto plain = parse_csv("1,2\n3,4\n", "t");
  CHECK(values_of(plain) == std::vector<float>{1, 2, 3, 4});
  CHECK(labels_of(plain) == std::vector<float>{0, 0});
  CHECK(values_of(parse_csv("1,2\n3,4\n", "t", {.header = muster::csv_header::present})) == std::vector<float>{3, 4});
  CHECK(values_of(parse_csv("\xef\xbb\xbf"
                            "1;2\n",
                            "t", {.delimiter = ';'})) == std::vector<float>{1, 2});
  CHECK(values_of(parse_csv("1\t2\n", "t", {.delimiter = '\t'})) == std::vector<float>{1, 2});
  CHECK(values_of(parse_csv("1 2\n", "t", {.delimiter = ' '})) == std::vector<float>{1, 2});
  CHECK(parse_csv("1,2\n", "t", {}, {.min_features = 5}).features() == 5);
  CHECK(parse_csv("a\n1\n", "t").name() == "t");
}

TEST_CASE("missing values are an error, zero or not a number, as asked") {
  const std::string text = "1,,3\nNA,\"\",?\n";
  CHECK_THROWS_WITH(parse_csv(text, "t"), contains("t:1:3: a value is missing in column 1"));
  CHECK(values_of(parse_csv(text, "t", {.missing = muster::missing_values::zero})) ==
        std::vector<float>{1, 0, 3, 0, 0, 0});
  const auto read = parse_csv(text, "t", {.missing = muster::missing_values::nan});
  CHECK(std::isnan(read.row(0)[1]));
  CHECK(std::isnan(read.row(1)[2]));
  CHECK(read.row(0)[2] == 3);
}

TEST_CASE("random tables are read as a naive reader reads them, in pieces of any size") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    muster::random_stream random(seed);
    const char delimiter = ",;\t "[random.below(4)];
    const std::size_t columns = 1 + random.below(8);
    const std::size_t label = random.below(columns + 1);
    const bool quotes = random.below(2) == 0;
    std::string text;
    if (random.below(2) == 0) {
      for (std::size_t k = 0; k < columns; ++k)
        text += (k > 0 ? std::string(1, delimiter) : "") + "c" + std::to_string(k);
      text += '\n';
    }
    std::vector<float> values, labels;
    const std::size_t rows = 1 + random.below(30);
    for (std::size_t i = 0; i < rows; ++i) {
      labels.push_back(0);
      for (std::size_t k = 0; k < columns; ++k) {
        const std::string word = random_number(random);
        (k == label ? labels.back() : values.emplace_back()) = exactly(word);
        if (k > 0) text += delimiter;
        const std::string blanks(delimiter == ' ' ? 0 : random.below(3), ' ');
        text += blanks + (quotes && random.below(3) == 0 ? '"' + word + '"' : word) + blanks;
      }
      if (i + 1 < rows || random.below(2) == 0) text += random.below(4) == 0 ? "\r\n" : "\n";
      if (random.below(8) == 0 && i + 1 < rows) text += '\n';
    }
    if (columns == 1 && label == 0) continue;  // no features
    const csv_options csv{.delimiter = delimiter, .label = label < columns ? std::to_string(label) : ""};
    for (const std::size_t piece : {std::size_t{1}, std::size_t{5}, std::size_t{64}, std::size_t{1} << 20}) {
      const auto format = muster::detail::format_of_csv(text, "t", csv, {});
      const auto read = muster::detail::dataset_of_text(text, *format, "t", {.threads = 2}, piece);
      REQUIRE(values_of(read) == values);
      REQUIRE(labels_of(read) == labels);
    }
  }
}

TEST_CASE("what is wrong with a table is told with line and column") {
  const auto refused = [](const std::string& text, const std::string& why, const csv_options& csv = {}) {
    CHECK_THROWS_WITH(parse_csv(text, "t", csv), contains(why));
  };
  refused("1,2\n3\n", "t:2:2: the row ends after 1 fields (the first row has 2)");
  refused("1,2\n3,4,5\n", "t:2:4: the row has more than 2 fields");
  refused("a,b\n1,x\n", "t:2:3: 'x' in column 1 is not a number");
  refused("a,b\n1,2 3\n", "t:2:3: '2 3' in column 1 is not a number");
  refused("1,1e99\n", "t:1:3: the number '1e99' in column 1 is too large");
  refused("1,-inf\n1,2\n", "is not a number", {.header = muster::csv_header::absent});
  refused("1,\"2\n3,4\n", "t:1:3: a quote is not closed");
  refused("1,\"2\"3\n", "t:1:6: there is text behind a closing quote");
  refused("a,b\n\"x\ny\",oops\n", "t:3:4: 'oops'", {.ignore = {"a"}});
  refused("\n \n", "t: has no rows");
  refused("a,b\n", "t: has no rows but the header");
  using muster::configuration_error;
  CHECK_THROWS_WITH(parse_csv("abel,b\n1,2\n", "t", {.label = "label"}), contains("did you mean 'abel'?"));
  CHECK_THROWS_AS(parse_csv("1,2\n", "t", {.label = "2"}), configuration_error);
  CHECK_THROWS_AS(parse_csv("1,2\n", "t", {.label = "0", .ignore = {"1"}}), configuration_error);
  CHECK_THROWS_AS(parse_csv("1,2\n", "t", {.delimiter = '.'}), configuration_error);
  CHECK_THROWS_AS(parse_csv("1,2\n", "t", {}, {.layout = muster::layout::sparse}), configuration_error);
}

TEST_CASE("rows that are wrong can be kept as bad records") {
  const std::string text = "a,b\n1,2\n3\n4,x\n5,6\n";
  const auto read = parse_csv(text, "t", {.label = "b"}, {.keep_bad_records = true});
  REQUIRE(read.bad().size() == 2);
  CHECK(read.bad()[0].where.to_string() == "t:3:2");
  CHECK(read.bad()[1].where.to_string() == "t:4:3");
  std::vector<expected_record> expected;
  const float rows[4][2] = {{1, 2}, {0, 0}, {0, 0}, {5, 6}};
  for (const auto& row : rows) expected.push_back({bytes_of(std::span<const float>(row, 1)), {row[1]}, row[0] == 0});
  check_source(read, expected, 1);
  CHECK(read.digest() != parse_csv("1,2\n0,0\n0,0\n5,6\n", "t", {.label = "1"}).digest());
}

TEST_CASE("a first row may be longer than what is looked at to find it") {
  constexpr std::size_t columns = 200'000;
  std::string text = "\n \n\"a name\nin two lines\"";
  for (std::size_t k = 1; k < columns; ++k) text += ",column " + std::to_string(k);
  text += "\r\n1";
  for (std::size_t k = 1; k < columns; ++k) text += ",2";
  const auto read = parse_csv(text, "t", {.label = "column 199999"});
  CHECK(read.size() == 1);
  CHECK(read.features() == columns - 1);
  CHECK(read.label(0) == 2);
  CHECK_THROWS_WITH(parse_csv(text + "\n3,4\n", "t"), contains("t:6:4: the row ends after 2 fields"));
}

TEST_CASE("a CSV file is read by its path") {
  const temporary_folder folder;
  const auto read = muster::read_csv(folder.write("table.csv", "1,2\n3,4\n"));
  CHECK(read.size() == 2);
  CHECK(read.name() == "csv:" + (folder / "table.csv"));
}
