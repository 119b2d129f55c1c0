#include <muster/core/error.hpp>

#include <muster/core/log.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"
#include "heard_log.hpp"

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

TEST_CASE("errors and logs show no password and no signature") {
  const std::pair<std::string, std::string> texts[] = {
      {"csv:https://me:pass@server/x.csv?label=y", "csv:https://...@server/x.csv?label=y"},
      {"https://token@server:80/x", "https://...@server:80/x"},
      {"postgresql://me:p/a@s?s@db:5432/x", "postgresql://...@db:5432/x"},
      {"https://server:8080/a@2x.png is there", "https://server:8080/a@2x.png is there"},
      {"'https://a/x?X-Amz-Credential=K%2F1&X-Amz-Date=7&X-Amz-Signature=ab/c=?label=y' cannot",
       "'https://a/x?X-Amz-Credential=...&X-Amz-Date=7&X-Amz-Signature=...?label=y' cannot"},
      {"https://a/x?sv=1&SIG=ab%2B: line 3", "https://a/x?sv=1&SIG=... line 3"},
      {"https://a/x?token=a,b;c&key=user", "https://a/x?token=...&key=user"},
      {"host=db password=secret dbname=x", "host=db password=... dbname=x"},
      {"host=db password = 'se\\'cret x' dbname=x", "host=db password = ... dbname=x"},
      {"two http://a:b@c and http://d:e@f", "two http://...@c and http://...@f"},
      {"design=1&label=2=3=", "design=1&label=2=3="},
      {"= password=", "= password=..."},
  };
  for (const auto& [text, shown] : texts) {
    CAPTURE(text);
    CHECK(muster::detail::without_secrets(text) == shown);
    CHECK(muster::detail::without_secrets(shown) == shown);
    CHECK(muster::configuration_error(text).what() == shown);
    const test::heard_log heard;
    muster::log(muster::log_level::error, text);
    CHECK(heard.text().find(shown) != std::string::npos);
  }
  const muster::data_error bad({"https://a/x.csv?sig=ab", 3, 15}, "the label is missing");
  CHECK(std::string(bad.what()) == "https://a/x.csv?sig=...:3:15: the label is missing");
  CHECK(bad.file() == "https://a/x.csv?sig=...");
  CHECK(bad.problem() == "the label is missing");
  muster::random_stream draw(5);
  for (int round = 0; round < 20000;
       ++round) {  // random texts: no value is hidden twice, and no byte after the end read
    std::string text;
    for (auto length = draw.below(30); length > 0; --length)
      text += std::vector<std::string>{"://", "@", ":",  "/",   "?",        "&", "=",
                                       " ",   "'", "\\", "sig", "password", "a", "..."}[draw.below(14)];
    CAPTURE(text);
    const auto once = muster::detail::without_secrets(text);
    CHECK(muster::detail::without_secrets(once).size() <= once.size() + 3);
  }
}

TEST_CASE("a typo finds the word that was meant, a stranger finds none") {
  const std::vector<std::string> words{"transport", "timeout", "ranks"};
  CHECK(muster::closest("tranport", words) == "transport");
  CHECK(muster::closest("rank", words) == "ranks");
  CHECK_FALSE(muster::closest("elephant", words));
}
