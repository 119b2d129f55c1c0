#include <muster/core/error.hpp>

#include "catch.hpp"

TEST_CASE("ranks are written as people write them") {
  CHECK(muster::format_ranks({2}) == "2");
  CHECK(muster::format_ranks({1, 0}) == "0 and 1");
  CHECK(muster::format_ranks({3, 1, 0, 2, 7}) == "0-3 and 7");
  CHECK(muster::format_ranks({9, 1, 5, 5}) == "1, 5 and 9");
  CHECK(muster::format_ranks({}).empty());
}

TEST_CASE("an error knows its kind, its place and the status to exit with") {
  const muster::data_error bad({"a9a", 3, 7}, "bad number 'x' (not a decimal) correct the line");
  CHECK(std::string(bad.what()).starts_with("a9a:3:7: "));
  CHECK(bad.record() == 3);
  CHECK(bad.exit_status() == 3);

  CHECK(std::string(muster::data_error({}, "label 3 is no class").what()) == "label 3 is no class");
  CHECK(std::string(muster::data_error({"", 0, 0, 7}, "is cut").what()) == "byte 7: is cut");
  CHECK(muster::data_error({}, "label 3 is no class").problem() == "label 3 is no class");

  const muster::timeout_error late("allreduce", 12, {1, 3}, 0.5);
  CHECK(late.missing() == std::vector<int>{1, 3});
  CHECK(std::string(late.what()).find("rank 1 and 3") != std::string::npos);

  const muster::peer_failure departed({2}, "rank 2 left", 3);
  CHECK(muster::exit_status_of(std::make_exception_ptr(departed)) == 3);
  CHECK(muster::exit_status_of(std::make_exception_ptr(std::runtime_error("x"))) == 1);
  CHECK(muster::exit_status_of(std::make_exception_ptr(42)) == 1);
  CHECK(muster::describe(std::make_exception_ptr(std::runtime_error("two\nlines"))) == "two lines");
}

TEST_CASE("a typo finds the word that was meant, a stranger finds none") {
  const std::vector<std::string> words{"transport", "timeout", "ranks"};
  CHECK(muster::closest("tranport", words) == "transport");
  CHECK(muster::closest("rank", words) == "ranks");
  CHECK_FALSE(muster::closest("elephant", words));
}
