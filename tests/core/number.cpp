#include <muster/core/number.hpp>

#include "catch.hpp"

TEST_CASE("numbers are decimal digits, all of the text, and nothing else") {
  CHECK(muster::parse_number<int>("0") == 0);
  CHECK(muster::parse_number<int>("-12") == -12);
  CHECK(muster::parse_number<std::uint64_t>("18446744073709551615") == ~std::uint64_t{0});
  CHECK(muster::parse_number<double>("0.5") == 0.5);
  CHECK(muster::parse_number<double>("1e-4") == 1e-4);
  for (const char* text : {"", "-", "+1", " 1", "1 ", "010", "-01", "0x10", "1.0", "1e3", "99999999999", "one"})
    CHECK_FALSE(muster::parse_number<int>(text));
  for (const char* text : {"-1", "-0", "18446744073709551616"}) CHECK_FALSE(muster::parse_number<std::uint64_t>(text));
  for (const char* text : {"", "nan", "-nan", "inf", "1e999", "00.5", "0x1p3", "1,5"})
    CHECK_FALSE(muster::parse_number<double>(text));
}

TEST_CASE("sizes may have units of 1024") {
  for (const char* text : {"4096", "4k", "4K", "4Ki", "4KiB", "4kb"}) CHECK(muster::parse_size(text) == 4096);
  CHECK(muster::parse_size("3g") == std::uint64_t{3} << 30);
  CHECK(muster::parse_size("16777215t") == std::uint64_t{16777215} << 40);
  for (const char* text : {"", "k", "-1k", "010k", "4 k", "4x", "4kk", "4kibs", "16777216t", "1e3k"})
    CHECK_FALSE(muster::parse_size(text));
}

TEST_CASE("a number that is refused is named with its range") {
  CHECK(muster::number_from<int>("--n", "4096", {1, 4096}) == 4096);
  CHECK_THROWS_WITH(muster::number_from<int>("--n", "0", {1, 4096}),
                    contains("--n cannot be '0' (it is a whole number from 1 to 4096); give a number in that range"));
  CHECK_THROWS_WITH(muster::number_from<double>("--x", "nan", {0.001, 1e8}), contains("from 0.001 to 100000000)"));
  CHECK_THROWS_WITH(muster::number_from<std::uint64_t>("--b", "-1", {0, 1024, true}), contains("0 to 1024 bytes)"));
}
