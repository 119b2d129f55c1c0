#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>
#include <muster/data/sources/libsvm.hpp>
#include <muster/data/sources/text_format.hpp>
#include "catch.hpp"

namespace {

struct bad_line {
  std::string line;
  std::uint64_t column;
  std::string text;  // part of the message
};

const std::vector<bad_line>& bad_lines() {
  static const std::vector<bad_line> lines = {
      // labels
      {"x 1:2", 1, "label 'x' is not a number"},
      {"  x 1:2", 3, "label 'x' is not a number"},
      {"1,2 1:2", 1, "label '1,2' is not a number"},
      {"1:2 3:4", 1, "label '1:2' is not a number"},
      {"-+1 1:2", 1, "label '-+1' is not a number"},
      {"nan 1:2", 1, "label 'nan' is not finite"},
      {"-inf 1:2", 1, "label '-inf' is not finite"},
      {"1e39 1:2", 1, "label '1e39' is too large"},
      {"0x1p3 1:2", 1, "label '0x1p3' is not a number"},
      {"\x01\xff 1:2", 1, "label '\\x01\\xff' is not a number"},
      {"1\r 1:2", 1, "label '1\\x0d' is not a number"},
      {std::string(100, 'a') + " 1:2", 1, "label '" + std::string(40, 'a') + "...' is not"},
      // features
      {"1 2", 3, "'2' is not a feature"},
      {"1 2 3:4", 3, "'2' is not a feature"},
      {"1 2 :4", 3, "'2' is not a feature"},
      {"1 :4", 3, "bad index in ':4'"},
      {"1 a:4", 3, "bad index in 'a:4'"},
      {"1 -1:4", 3, "bad index in '-1:4'"},
      {"1 +1:4", 3, "bad index in '+1:4'"},
      {"1 1.5:4", 3, "bad index in '1.5:4'"},
      {"1 1a:4", 3, "bad index in '1a:4'"},
      {"1 qid:7 1:2", 3, "'qid:7' belongs to ranking data"},
      {"1\t0:1", 3, "index 0 in '0:1' (LIBSVM counts features from 1)"},
      {"1 3:1 2:1", 7, "index 2 in '2:1' is out of order (it follows 3"},
      {"1 1000000:1 2:1", 13, "index 2 in '2:1' is out of order (it follows 1000000"},
      {"1 3:1   3:2", 9, "index 3 occurs twice, again in '3:2'"},
      {"1 4294967296:1", 3, "index in '4294967296:1' is too large (at most 4294967295)"},
      {"1 99999999999999999999999:1", 3, "index in '99999999999999999999999:1' is too large"},
      {"1 00000000000000000003:1", 3, "index in '00000000000000000003:1' is too large"},
      {"1 18446744073709551617:1", 3, "index in '18446744073709551617:1' is too large"},
      // values
      {"1 3:", 5, "no value of feature 3"},
      {"1 3: 4", 5, "no value of feature 3"},
      {"1 1:1 3:# 4", 9, "no value of feature 3"},
      {"1 3:x", 5, "value 'x' of feature 3 is not a number"},
      {"1 3:1.2.3", 5, "value '1.2.3' of feature 3 is not a number"},
      {"1 3:1:2", 5, "value '1:2' of feature 3 is not a number"},
      {"1 3:1,5", 5, "value '1,5' of feature 3 is not a number"},
      {"1 3:--1", 5, "value '--1' of feature 3 is not a number"},
      {"1 3:nan", 5, "value 'nan' of feature 3 is not finite"},
      {"1 3:-NaN", 5, "value '-NaN' of feature 3 is not finite"},
      {"1 3:inf", 5, "value 'inf' of feature 3 is not finite"},
      {"1 3:-Infinity", 5, "value '-Infinity' of feature 3 is not finite"},
      {"1 3:1e39", 5, "value '1e39' of feature 3 is too large"},
      {"1 3:-4e38", 5, "value '-4e38' of feature 3 is too large"},
      {"1 3:1e39x", 5, "value '1e39x' of feature 3 is not a number"},
  };
  return lines;
}

template <class Read>
void check_refused(Read read, std::uint64_t line, std::uint64_t column, const std::string& text) {
  try {
    (void)read();
  } catch (const muster::data_error& refused) {
    CHECK(refused.where().file == "file");
    CHECK(refused.where().line == line);
    CHECK(refused.where().column == column);
    CHECK_THAT(refused.what(), contains(text));
    CHECK_THAT(refused.what(), contains("file:" + std::to_string(line) + ":" + std::to_string(column) + ": "));
    return;
  }
  FAIL("was not refused");
}

}  // namespace

TEST_CASE("everything that is wrong is refused with its line, its column and the word") {
  for (const auto& bad : bad_lines()) {
    CAPTURE(bad.line);
    for (const auto layout : {muster::layout::dense, muster::layout::sparse, muster::layout::automatic}) {
      const std::string before = "# top\n1 1:1\r\n\n-1 2:1 # 1:x\n";
      for (const char* end : {"", "\n", "\r\n", " \n", "\n1 x\n"}) {
        const std::string text = before + bad.line + end;
        check_refused([&] { return muster::data::parse_libsvm(text, "file", {.layout = layout}); }, 5, bad.column,
                      bad.text);
      }
    }
  }
}

TEST_CASE("of many errors the first in the file is told, whatever thread meets it first") {
  const std::uint64_t seed = 3;
  muster::random_stream random(seed);
  for (int round = 0; round < 100; ++round) {
    std::string text;
    std::uint64_t first = 0;
    const bad_line* expected_error = nullptr;
    for (std::uint64_t line = 1; line <= 200; ++line) {
      if (random.below(100) == 0 || line == 200) {
        const auto& bad = bad_lines()[random.below(bad_lines().size())];
        if (expected_error == nullptr) {
          first = line;
          expected_error = &bad;
        }
        text += bad.line + "\n";
      } else {
        text += "1 1:0.5 3:1 700:2\n";
      }
    }
    const auto piece = 1 + random.below(500);
    CAPTURE(seed, round, expected_error->line, piece);
    const muster::read_options options{.layout = muster::layout::sparse, .threads = 3};
    const auto format = muster::data::detail::format_of_libsvm("file", options);
    check_refused([&] { return muster::data::detail::dataset_of_text(text, *format, "name", options, piece); }, first,
                  expected_error->column, expected_error->text);
  }
}

TEST_CASE("a text without samples or without features is refused as a whole") {
  for (const char* text : {"", "\n", "\n\r\n  \n", "# 1 1:2\n", "   # only a note"}) {
    CAPTURE(std::string(text));
    CHECK_THROWS_WITH(muster::data::parse_libsvm(text, "file"), contains("file: has no samples"));
  }
  CHECK_THROWS_WITH(muster::data::parse_libsvm("1\n-1\n", "file"), contains("file: has no features"));
  // If lines were left out, the error is about the first line.
  CHECK_THROWS_WITH(muster::data::parse_libsvm("1 1:inf\n", "file", {.keep_bad_records = true}),
                    contains("file:1:5: value 'inf' of feature 1 is not finite"));
  CHECK_THROWS_WITH(muster::data::parse_libsvm("1\nx 1:2\n", "file", {.keep_bad_records = true}),
                    contains("file:2:1: label 'x' is not a number"));
  CHECK(muster::data::parse_libsvm("1\n-1\n", "file", {.min_features = 4}).features() == 4);
}

TEST_CASE("a dense layout that no memory holds is refused") {
  // A sanitizer aborts a program that allocates so much memory, while the system only refuses the allocation.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::string text;
  for (int i = 0; i < 64000; ++i) text += "1 4294967295:1\n";
  CHECK_THROWS_WITH(muster::data::parse_libsvm(text, "file", {.layout = muster::layout::dense}),
                    contains("file: does not fit into memory (64000 samples of 4294967295 features, dense)"));
#endif
}
