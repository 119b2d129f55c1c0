#include <muster/core/text.hpp>

#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

namespace detail = muster::detail;

TEST_CASE("joined is the inverse of split, empty parts included") {
  for (const std::string_view text : {"", "a", "a,b", ",a", "a,", ",,", "a,,b"}) {
    INFO(text);
    CHECK(detail::joined(detail::split(text, ','), ",") == text);
  }
  CHECK(detail::joined(std::vector<std::string_view>(), ",").empty());
  CHECK(detail::joined(std::vector{1, 2}, " and ", [](int number) { return std::to_string(number); }) == "1 and 2");
}

TEST_CASE("a list has an optional trailing comma") {
  CHECK(detail::listed("").empty());
  CHECK(detail::listed("a,b,") == std::vector<std::string_view>{"a", "b"});
  CHECK(detail::listed("a,,b") == std::vector<std::string_view>{"a", "", "b"});
}

TEST_CASE("a text on one line has no control character, whatever its bytes") {
  CHECK(detail::on_one_line("a\tb\r\nc\x1b[2J\x7f") == "a b  c?[2J?");
  CHECK(detail::on_one_line("\xc2\x9b"
                            "2J\xc2\x85"
                            "end\xc2") == "?2J?end\xc2");  // U+009B is ESC [
  CHECK(detail::on_one_line("\xc2\xa0\xc3\x9f\xe2\x82\xac\xc2\xc2\x80") == "\xc2\xa0\xc3\x9f\xe2\x82\xac\xc2?");
}

TEST_CASE("numbers are printed with a point in a process whose locale has a comma") {
  const auto folder = std::filesystem::temp_directory_path() / ("muster-locale-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::string command = "localedef -i de_DE -f UTF-8 " + (folder / "comma.UTF-8").string() + " > /dev/null 2>&1";
  const bool is_made = std::system(command.c_str()) == 0;
  ::setenv("LOCPATH", folder.c_str(), 1);
  const bool has_comma = is_made && std::setlocale(LC_ALL, "comma.UTF-8") != nullptr;
  const auto printed = detail::printed("%.2f %g %d", 1234.5, 0.25, 1234567);
  const std::string separator = std::localeconv()->decimal_point;
  std::setlocale(LC_ALL, "C");
  ::unsetenv("LOCPATH");
  std::filesystem::remove_all(folder);
  CHECK(printed == "1234.50 0.25 1234567");
  if (!has_comma) {
    std::puts("SKIPPED: localedef makes no locale de_DE here (package locales)");
    return;
  }
  CHECK(separator == ",");  // the process's own locale stays
}

TEST_CASE("a pattern matches only whole names that muster makes") {
  const auto digits = detail::hex(0x1234);
  CHECK(digits == "0000000000001234");
  CHECK(detail::matches_name_pattern("step-12." + digits, "step-#.%"));
  for (const std::string& name :
       {std::string("step-12"), "step-.a" + digits, "step-12." + digits + "0", "my-step-12." + digits}) {
    INFO(name);
    CHECK(!detail::matches_name_pattern(name, "step-#.%"));
  }
}
