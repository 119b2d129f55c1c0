#include <muster/data/sources/csv.hpp>

#include <charconv>
#include <cmath>
#include <limits>

#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/core/random.hpp>
#include <muster/data/sources/text_format.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"

namespace {

using muster::data::csv_options;
using muster::data::parse_csv;

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
  return result.ec == std::errc::result_out_of_range ? 0.0f : value;  // no number here is too large
}

}  // namespace

TEST_CASE("a table has its columns by name or number, with a header or without") {
  const std::string text = "id, a ,\"the \"\"label\"\"\",b\nx7,1,-1,2\n\"y,\n8\",3,+1,4\r\n\n , .5, 0 , 1e1";
  const auto read = parse_csv(text, "t", {.label = "the \"label\"", .ignore = {"id"}});
  CHECK(values_of(read) == std::vector<float>{1, 2, 3, 4, 0.5, 10});
  CHECK(labels_of(read) == std::vector<float>{-1, 1, 0});
  CHECK(parse_csv(text, "t", {.label = "2", .ignore = {"0"}}).digest() == read.digest());
  const auto plain = parse_csv("1,2\n3,4\n", "t");
  CHECK(values_of(plain) == std::vector<float>{1, 2, 3, 4});
  CHECK(labels_of(plain) == std::vector<float>{0, 0});
  CHECK(values_of(parse_csv("1,2\n3,4\n", "t", {.header = muster::data::csv_header::present})) ==
        std::vector<float>{3, 4});
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
  CHECK(values_of(parse_csv(text, "t", {.missing = muster::data::missing_values::zero})) ==
        std::vector<float>{1, 0, 3, 0, 0, 0});
  const auto read = parse_csv(text, "t", {.missing = muster::data::missing_values::nan});
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
        // A label that a float rounds to another whole number is refused.
        const std::string word = k == label ? std::to_string(random.below(1'000'000)) : random_number(random);
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
      const auto format = muster::data::detail::format_of_csv(text, "t", csv, {});
      const auto read = muster::data::detail::dataset_of_text(text, *format, "t", {.threads = 2}, piece);
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
  refused("1,-inf\n1,2\n", "is not a number", {.header = muster::data::csv_header::absent});
  refused("1,\"2\n3,4\n", "t:1:3: a quote is not closed");
  refused("1,\"2\"3\n", "t:1:6: there is text after a closing quote");
  refused("a,b\n\"x\ny\",oops\n", "t:3:4: 'oops'", {.ignore = {"a"}});
  refused("\n \n", "t: has no rows");
  refused("a,b\n", "t: has no rows but the header");
  refused(std::string("\xff\xfe"
                      "a\0,\0b\0\n\0"
                      "1\0,\0"
                      "2\0\n\0",
                      18),
          "t: is UTF-16");
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
  CHECK(read.bad()[0].location.to_string() == "t:3:2");
  CHECK(read.bad()[1].location.to_string() == "t:4:3");
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

TEST_CASE("a first row is names only where its fields are, and a guess is told") {
  const auto rows = [](const std::string& text, const csv_options& csv = {}) {
    return parse_csv(text, "t", csv).size();
  };
  CHECK(rows("a,b\n1,2\n") == 1);
  CHECK(rows("1,2\n3,4\n") == 2);
  // Ignored columns do not count.
  CHECK(rows("x,1,2\ny,3,4\n", {.ignore = {"0"}}) == 2);
  CHECK(rows("part,a,y\ny,3,4\n", {.label = "y", .ignore = {"part"}}) == 1);
  // A single word among numbers is an error, as in row two.
  const std::string typo = "1,2,x\n3,4,5\n6,7,8\n";
  CHECK_THROWS_WITH(rows(typo), contains("t:1:5: 'x' in column 2 is not a number") && contains("header=1"));
  CHECK_THROWS_WITH(rows("1,2,-inf\n3,4,5\n"), contains("t:1:5: '-inf' in column 2"));
  CHECK_THROWS_WITH(rows("2019,2020,2021,name\n3,4,5,6\n"), contains("t:1:16: 'name'"));
  const auto data = parse_csv(typo, "t", {.label = "0"}, {.keep_bad_records = true});
  CHECK(data.size() == 3);
  REQUIRE(data.bad().size() == 1);
  CHECK(data.bad()[0].location.line == 1);
  CHECK(rows("2019,2020,2021,name\n3,4,5,6\n", {.label = "name"}) == 1);
  CHECK(rows(typo, {.header = muster::data::csv_header::present}) == 2);
  // Names as pandas writes them, with an index and without.
  const auto indexed = parse_csv(",0,1,2\n0,5.1,3.5,1\n1,4.9,,0\n", "t",
                                 {.label = "3", .ignore = {"0"}, .missing = muster::data::missing_values::zero});
  CHECK(values_of(indexed) == std::vector<float>{5.1f, 3.5f, 4.9f, 0});
  CHECK(labels_of(indexed) == std::vector<float>{1, 0});
  CHECK_THROWS_WITH(rows("0,1,2\n5.1,3.5,1\n"), contains("set header=1 or header=0"));
  CHECK(rows("0,1,2\n5.1,3.5,1\n", {.header = muster::data::csv_header::absent}) == 2);
  CHECK(labels_of(parse_csv("0,1,2\n5.1,3.5,1\n", "t", {.header = muster::data::csv_header::present, .label = "2"})) ==
        std::vector<float>{1});

  std::vector<std::string> messages;
  muster::set_log_callback([&](const muster::log_message& message) { messages.emplace_back(message.text); });
  const auto guessed = parse_csv("a,b\n1,2\n", "t");
  (void)parse_csv("a,b\n1,2\n", "t", {.label = "b"});
  (void)parse_csv("a,b\n1,2\n", "t", {.header = muster::data::csv_header::present});
  (void)parse_csv("1,2\n", "t");
  muster::set_log_callback({});
  REQUIRE(messages.size() == 2);
  CHECK(guessed.notes() == std::vector<std::string>{messages[0]});
  CHECK_THAT(messages[0], contains("the first row of t is read as names ('a', 'b')") && contains("header=0"));
  CHECK_THAT(messages[1], contains("the first row of t is read as a sample ('1', '2')") && contains("header=1"));
}

TEST_CASE("two columns of one name are refused") {
  CHECK_THROWS_WITH(parse_csv("a,b,a\n1,2,3\n", "t"), contains("t:1:5: two columns have the name 'a'"));
  CHECK_THROWS_AS(parse_csv("a,b,a\n1,2,3\n", "t", {.label = "b"}), muster::data_error);
  CHECK(parse_csv("a,,\n1,2,3\n", "t").features() == 3);  // columns without names do not count as equal names
  CHECK(parse_csv("a,b,a.1\n1,2,3\n", "t").features() == 3);
}

TEST_CASE("a quote that begins no field is text, and one that is not closed takes no other row with it") {
  const std::string inches = "id,part,y\n1,3\" pipe,0\n2,4\" pipe,1\n3,plain,0\n";
  CHECK(labels_of(parse_csv(inches, "t", {.label = "y", .ignore = {"part"}})) == std::vector<float>{0, 1, 0});
  CHECK(labels_of(parse_csv("len (5\"),y\n1,0\n2,1\n", "t", {.label = "y"})) == std::vector<float>{0, 1});
  CHECK(labels_of(parse_csv("\"a \"\"b\"\"\",y\n1,0\n2,1\n", "t", {.label = "a \"b\""})) == std::vector<float>{1, 2});
  // Rows after an open quote are read, for any following quotes and any division into pieces.
  for (const std::string open : {"\"open,1", "\"open\" x,1", "\"a\"\"b,1", "x,\"1", "\"\"\",1"}) {
    for (const std::string later : {"", "7,\"fine\",1\n", "7,24\" fine,1\n", "7,24\",1\n", "7,\"two\nlines\",1\n"}) {
      CAPTURE(open, later);
      std::string text = "id,note,y\n1,ok,0\n2," + open + "\n";
      for (int row = 3; row < 30; ++row) text += std::to_string(row) + ",ok,1\n";
      text += later;
      const std::size_t rows = 29 + (later.empty() ? 0 : 1);
      for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{1} << 20}) {
        const csv_options csv{.label = "y", .ignore = {"note"}};
        const muster::read_options options{.threads = 2, .keep_bad_records = true};
        const auto format = muster::data::detail::format_of_csv(text, "t", csv, options);
        const auto read = muster::data::detail::dataset_of_text(text, *format, "t", options, piece);
        REQUIRE(read.size() == rows);
        REQUIRE(read.bad().size() == 1);
        CHECK(read.bad()[0].location.line == 3);
        CHECK(read.row(rows - 1)[0] == (later.empty() ? 29 : 7));
      }
    }
  }
}

TEST_CASE("line ends of every kind end lines, and two kinds in one file are told") {
  const csv_options csv{.label = "y"};
  const std::vector<float> labels = {0, 1, 0};
  for (const std::string end : {"\n", "\r\n", "\r\r\n", "\r"}) {
    CAPTURE(end);
    const std::string text = "a,b,y" + end + "1,2,0" + end + "3,4,1" + end + "5,6,0";
    for (const std::string& last : {std::string(), end}) {
      const auto read = parse_csv(text + last, "t", csv);
      CHECK(labels_of(read) == labels);
      CHECK(values_of(read) == std::vector<float>{1, 2, 3, 4, 5, 6});
      const auto format = muster::data::detail::format_of_csv(text + last, "t", csv, {});
      CHECK(muster::data::detail::dataset_of_text(text + last, *format, "t", {}, 3).digest() == read.digest());
    }
    CHECK_THROWS_WITH(parse_csv(text + end + "7,x,1", "t", csv), contains("t:5:3: 'x'"));
  }
  CHECK(parse_csv("1,2\r3,4\r", "t").size() == 2);
  CHECK_THROWS_WITH(parse_csv("a,y\n1,2\r3,4\n", "t", csv), contains("carriage return") && contains("two kinds"));
}

TEST_CASE("between columns that blanks set apart there may be several") {
  const csv_options csv{.delimiter = ' ', .label = "2"};
  const auto read = parse_csv("1  2 0\n  3 4    1  \n\"5\"  6 \"2\" \n", "t", csv);
  CHECK(values_of(read) == std::vector<float>{1, 2, 3, 4, 5, 6});
  CHECK(labels_of(read) == std::vector<float>{0, 1, 2});
  CHECK_THROWS_WITH(parse_csv("1 2 0\n3  1\n", "t", csv), contains("t:2:5: the row ends after 2 fields"));
  const auto tabs = parse_csv("1\t\t0\n", "t", {.delimiter = '\t', .missing = muster::data::missing_values::zero});
  CHECK(values_of(tabs) == std::vector<float>{1, 0, 0});
}

TEST_CASE("a CSV file is read by its path") {
  const temporary_folder folder;
  const auto read = muster::data::read_csv(folder.write("table.csv", "1,2\n3,4\n"));
  CHECK(read.size() == 2);
  CHECK(read.name() == "csv:" + (folder / "table.csv"));
}
