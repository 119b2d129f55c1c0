#include <muster/data/sources/jsonl.hpp>

#include <cmath>

#include <muster/core/error.hpp>
#include <muster/core/text.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/text_format.hpp>
#include "../files.hpp"
#include "../records.hpp"
#include "catch.hpp"

namespace {

muster::dataset parse(std::string_view text, const muster::data::jsonl_options& jsonl = {},
                      const muster::read_options& options = {}) {
  return muster::data::detail::dataset_of_text(text, *muster::data::detail::format_of_jsonl(text, "t", jsonl, options),
                                               "t", options);
}

std::vector<float> row_of(const muster::dataset& read, std::size_t row) {
  return {read.row(row).begin(), read.row(row).end()};
}

}  // namespace

TEST_CASE("JSON lines are rows whose columns are the keys of the first lines") {
  const auto read = parse(
      "\n{\"a\": 1, \"text\": \"x\", \"b\": [[0.5, -2e1], [true, false]]}\r\n"
      "{\"b\":[1,2,3,4],\"label\":3,\"a\":null}\n \n"
      "{\"label\":-0.0,\"b\":null,\"text\":{\"n\":[1,{}]}}",
      {.label = "label", .ignore = {"text"}, .missing = muster::data::missing_values::zero},
      {.keep_bad_records = true});
  REQUIRE(read.size() == 3);
  CHECK(read.columns().features == std::vector<std::string>{"a", "b.0", "b.1", "b.2", "b.3"});
  CHECK(read.columns().label == "label");
  REQUIRE(read.bad().size() == 1);
  CHECK(read.bad()[0].id == 0);
  CHECK(read.bad()[0].location.to_string() == "t:2:57");
  CHECK_THAT(read.bad()[0].problem, contains("the label is missing"));
  CHECK(row_of(read, 1) == std::vector<float>{0, 1, 2, 3, 4});
  CHECK(row_of(read, 2) == std::vector<float>(5));
  CHECK(read.label(1) == 3);
  CHECK_FALSE(std::signbit(read.label(2)));
  const auto nan = parse("{\"a\":1,\"b\":2}\n{\"b\":null}", {.missing = muster::data::missing_values::nan});
  CHECK(std::isnan(nan.row(1)[0]));
  CHECK(std::isnan(nan.row(1)[1]));
  CHECK(row_of(parse(R"({"a\u00e4\ud83d\ude00\"":1,"b":2})", {.label = "a\xc3\xa4\xf0\x9f\x98\x80\""}), 0) ==
        std::vector<float>{2});
}

TEST_CASE("texts are labels if their classes are listed") {
  const temporary_folder folder;
  const std::string path = folder.write(
      "t.jsonl", "{\"x\":1,\"kind\":\"dog\"}\n{\"x\":2,\"kind\":\"c\\u0061t\"}\n{\"x\":3,\"kind\":\"cow\"}\n");
  const auto source = muster::open_source("jsonl:" + path + "?label=kind&classes=cat,dog&bad=keep");
  CHECK(source.schema().classes == std::vector<std::string>{"cat", "dog"});
  const auto bytes = [](float value) { return bytes_of(std::span<const float>(&value, 1)); };
  check_source(source, {{bytes(1), {1}}, {bytes(2), {0}}, {bytes(0), {0}, true}}, 81);
  CHECK_THROWS_WITH(
      muster::open_source("jsonl:" + path + "?label=kind"),
      contains("t.jsonl:1:20: the label 'kind' is a text (a label is a number, or, with classes=NAME,NAME, a text)"));
  CHECK_THROWS_WITH(muster::open_source("jsonl:" + path + "?label=kind&classes=cat,dog"),
                    contains("t.jsonl:3:20: the label 'cow' is not a class"));
  CHECK_THROWS_WITH(muster::open_source("jsonl:" + path + "?label=x&classes=1&ignore=kind"),
                    contains("has no features"));
  CHECK_THROWS_AS(muster::open_source("jsonl:" + path + "?classes=cat"), muster::configuration_error);
}

TEST_CASE("JSON lines on demand are the records in memory") {
  muster::random_stream random(82);
  std::string text;
  for (int row = 0; row < 3000; ++row) {
    text += muster::detail::printed("{\"y\":%d,\"x\":[%g,%g],\"z\":%d}\n", row % 7, random.uniform(), -1e-3 * row, row);
    if (row % 500 == 77) text += "{\"y\":1,\"x\":[1]}\n";
  }
  const muster::data::jsonl_options jsonl{.label = "y"};
  const muster::read_options options{.threads = 2, .keep_bad_records = true};
  const auto whole = parse(text, jsonl, options);
  CHECK(whole.bad().size() == 6);
  auto file = std::make_shared<const muster::data::mapped_file>(std::vector<char>(text.begin(), text.end()));
  const auto records = muster::data::detail::records_of_text(
      file, muster::data::detail::format_of_jsonl(file->text(), "t", jsonl, options), "t", options,
      {.piece_bytes = 999, .cache_bytes = 9999});
  std::vector<expected_record> expected;
  for (std::size_t k = 0; k < whole.size(); ++k)
    expected.push_back({bytes_of(std::span<const float>(whole.row(k))), {whole.label(k)}});
  for (const auto& bad : whole.bad()) expected[bad.id].bad = true;
  check_source(records, expected, 83);
}

TEST_CASE("a line of JSON that is no row is refused with line, column and key") {
  const auto refused = [](const std::string& line, const std::string& why,
                          const muster::data::jsonl_options& jsonl = {}) {
    CAPTURE(line);
    const std::string text = "{\"a\":1,\"b\":[1,2]}\n" + line + "\n";
    CHECK_THROWS_WITH(parse(text, jsonl), contains("t:2:") && contains(why));
  };
  refused("[1]", "this line is an array");
  refused("\"a\"", "this line is a single value");
  for (const char* line : {"{\"a\":1", "{\"a\":1,\"b\":[1,2]} x", "{\"a\":1,}", "{\"a\":1 \"b\":[1,2]}", "{\"a\" 1}",
                           "{\"a\":}", "{\"\\ud800\":1}", "{\"\\x\":1}", "{\"\\u12\":1}", "{\"a", "{\"a\":\"x\ty\"}"})
    refused(line, "this line is not JSON");
  for (const char* number : {"01", "1.", ".5", "+1", "1e", "0x1", "Infinity", "NaN", "-", "tru", "1 2"}) {
    CAPTURE(number);
    CHECK_THROWS_AS(parse("{\"a\":1}\n{\"a\":" + std::string(number) + "}"), muster::data_error);
  }
  refused("{\"a\":1e99,\"b\":[1,2]}", "the number '1e99' is too large for a float");
  refused("{\"a\":null,\"b\":[1,2]}", "a value is missing in 'a'");
  refused("{\"b\":[1,2]}", "a value is missing in 'a'");
  refused("{\"a\":1,\"b\":[1]}", "there are 1 values in 'b' (in the first lines there are 2)");
  refused("{\"a\":1,\"b\":[1,2,3]}", "there are 3 values in 'b'");
  refused("{\"a\":1,\"b\":[1,null]}", "a value is missing in 'b'");
  refused("{\"a\":[],\"b\":[1,2]}", "there are 0 values in 'a'");
  refused("{\"a\":\"1\",\"b\":[1,2]}", "the value of 'a' is a text");
  refused("{\"a\":{\"c\":1},\"b\":[1,2]}", "the value of 'a' is an object (features are numbers)");
  refused("{\"a\":1,\"a\":2,\"b\":[1,2]}", "the key 'a' is there twice");
  refused("{\"a\":1,\"b\":[1,2],\"a\":3}", "the key 'a' is there twice");
  refused("{\"a\":16777217,\"b\":[1,2]}", "label '16777217' cannot be used", {.label = "a"});
  refused("{\"a\":null,\"b\":[1,2]}", "the label is missing",
          {.label = "a", .missing = muster::data::missing_values::zero});
  refused("{\"b\":[1,2]}", "the label is missing", {.label = "a", .missing = muster::data::missing_values::zero});
  refused("{\"a\":[1],\"b\":[1,2]}", "the label 'a' is an array", {.label = "a"});
  refused("{\"a\":{\"b\":[1]},\"b\":[1,2]}", "the label 'a' is an object", {.label = "a"});
  refused("{\"a\":" + std::string(100'000, '[') + "}", "this line is not JSON");
  refused("{\"a\":1,\"b\":" + std::string(100'000, '[') + "}", "this line is not JSON", {.ignore = {"b"}});
  refused("{\"a\":1,\"b\":[1,{\"c\":tru}]}", "this line is not JSON", {.ignore = {"b"}});
  CHECK_THROWS_WITH(parse("{\"a\":1,\"b\":2}", {.label = "a", .classes = {"x"}}),
                    contains("t:1:8: the label 'a' is a number"));
  std::string late;
  for (int row = 0; row < 100; ++row) late += "{\"a\":1}\n";
  CHECK_THROWS_WITH(parse(late + "{\"a\":1,\"c\":2}"), contains("t:101:11: the key 'c' is not in the first 100 lines"));
  CHECK(parse(late + "{\"a\":1,\"c\":2}", {.ignore = {"c"}}).size() == 101);
  CHECK_THROWS_WITH(parse("\n\n"), contains("t: has no keys in its first lines"));
  CHECK_THROWS_WITH(parse("{}\n{}"), contains("t: has no keys in its first lines"));
  CHECK_THROWS_WITH(parse("{\"a\":1}", {.label = "b"}), contains("there is no column 'b'"));
  CHECK_THROWS_WITH(parse("{\"a\":1}", {.label = "a"}), contains("t has no features"));
  CHECK_THROWS_AS(parse("{\"a\":1}", {}, {.layout = muster::layout::sparse}), muster::configuration_error);
}
