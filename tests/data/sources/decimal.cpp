#include <muster/data/sources/decimal.hpp>

#include <cmath>
#include <cstdio>
#include <string>

#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

// Checks that each parser reads the number like std::from_chars, up to the same position, with and without text after
// it. `word` has no sign.
void check_against_from_chars(const std::string& word) {
  float expected = -1;
  const auto oracle = std::from_chars(word.data(), word.data() + word.size(), expected);
  const bool none = oracle.ec == std::errc::invalid_argument;
  const bool tiny = oracle.ec == std::errc::result_out_of_range && std::strtod(word.c_str(), nullptr) < 1;
  if (tiny) expected = 0;
  const bool read = oracle.ec == std::errc() || tiny;
  static const auto fastest = muster::data::detail::fastest_float_parser();
  for (const std::string sign : {"", "-", "+"}) {
    for (const char* behind : {"", " 7:0.25 8:1 9:-1.75e3"}) {
      const std::string text = sign + word + behind;
      const char* const last = text.data() + text.size();
      for (const bool portable : {true, false}) {
        float value = -1;
        const auto result =
            portable ? muster::data::detail::parse_float(text.data(), last, value) : fastest(text.data(), last, value);
        const bool right = result.ec == (tiny ? std::errc() : oracle.ec) &&
                           result.ptr == text.data() + (none ? 0 : sign.size()) + (oracle.ptr - word.data()) &&
                           bits(value) == bits(read ? (sign == "-" ? -expected : expected) : -1);
        if (right) continue;  // runs a million times, and an assertion is slower than parsing a number
        CAPTURE(text, portable, value, expected);
        FAIL("is read wrongly");
      }
    }
  }
}

std::string format(const char* pattern, double value, int digits) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, digits, value);
  return text;
}

}  // namespace

TEST_CASE("numbers of every size and length are read as std::from_chars reads them") {
  const std::uint64_t seed = 20;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int i = 0; i < 100000; ++i) {
    // A positive finite float, possibly subnormal, with fewer digits than it has, the same number, or more.
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(0x7f800000)));
    check_against_from_chars(format("%.*e", value, static_cast<int>(random.below(25))));
    check_against_from_chars(format("%.*g", value, static_cast<int>(random.below(25))));
    const double usual = std::ldexp(random.uniform(), static_cast<int>(random.below(12)));
    check_against_from_chars(format("%.*f", usual, static_cast<int>(random.below(25))));
    check_against_from_chars(std::to_string(random() >> random.below(64)));
  }
}

TEST_CASE("numbers next to the boundary between two floats are rounded to the right one") {
  const std::uint64_t seed = 21;
  CAPTURE(seed);
  muster::random_stream random(seed);
  for (int i = 0; i < 100000; ++i) {
    const auto low = static_cast<std::uint32_t>(random.below(0x7f7fffff));
    // Exact, because doubles have more bits.
    const double boundary = (double(std::bit_cast<float>(low)) + double(std::bit_cast<float>(low + 1))) / 2;
    check_against_from_chars(format("%.*e", boundary, 16 + static_cast<int>(random.below(4))));
    check_against_from_chars(format("%.*e", std::nextafter(boundary, 0), 17));
    check_against_from_chars(format("%.*e", std::nextafter(boundary, 1e300), 17));
    // All digits of the boundary, and a number slightly above it.
    std::string exact = format("%.*f", double(random.below(1 << 24)) + 0.5 + double(1 << 24), 1);
    check_against_from_chars(exact);
    check_against_from_chars(exact + std::string(random.below(40), '0') + "1");
  }
}

TEST_CASE("what is odd about numbers is read as std::from_chars reads it") {
  for (const char* word : {"0",
                           "00",
                           "0.0",
                           ".0",
                           "0.",
                           "1.",
                           ".5",
                           ".",
                           "",
                           "e5",
                           ".e5",
                           "1e",
                           "1e+",
                           "1e-",
                           "1e+5",
                           "1E5",
                           "1e05",
                           "1e00000000005",
                           "1e99999999999999999999",
                           "1e-99999999999999999999",
                           "0e99999999999999999999",
                           "1ee5",
                           "1.2.3",
                           "1..2",
                           "1 2",
                           "12a",
                           "0x10",
                           "1,5",
                           "--1",
                           "-",
                           "+",
                           "3.4028235e38",
                           "3.4028236e38",
                           "3.40282357e38",
                           "1e39",
                           "340282356779733661637539395458142568447",
                           "340282356779733661637539395458142568448",
                           "1e-37",
                           "1e-38",
                           "1.17549435e-38",
                           "1.17549428e-38",
                           "1e-45",
                           "7e-46",
                           "7.1e-46",
                           "1e-46",
                           "1e-400",
                           "1e400",
                           "00000000000001.5",
                           "0.00000000000000000000000000000000000000000000000000000000000001",
                           "0.00000000000000000000000000000000000000000000000000000000000001e62",
                           "123456789012345678901234567890",
                           "100000000000000000000000000000000000000000",
                           "9007199254740993",
                           "16777217",
                           "16777219",
                           "99999999",
                           "999999999",
                           "123456789",
                           "1234567890123456",
                           "12345678/",
                           "1234567:8",
                           "12345678\x80",
                           "0.000000119209289550781250",
                           "179769313486231570000000000000000000000e0",
                           "1234567\xff"
                           "8"}) {
    if (word[0] != '-' && word[0] != '+') check_against_from_chars(word);
  }
  for (const char* word :
       {"--1", "-+1", "+-1", "++1", "-", "+", "inf", "-inf", "nan", "+nan", "infinity", "-.", "- 1"}) {
    for (const auto parse : {muster::data::detail::float_parser(muster::data::detail::parse_float),
                             muster::data::detail::fastest_float_parser()}) {
      float value = 0;
      const std::string text = word + std::string("                ");
      const auto result = parse(text.data(), text.data() + text.size(), value);
      CAPTURE(text);
      CHECK(result.ec == std::errc::invalid_argument);
      CHECK(result.ptr == text.data());
    }
  }
}
