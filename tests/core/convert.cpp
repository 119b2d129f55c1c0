#include <muster/core/convert.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/random.hpp>

#include "catch.hpp"

TEST_CASE("whole arrays are converted as single numbers are") {
  muster::random_stream random(1);
  std::vector<float> values(100003);
  for (float& value : values) {  // with all exponents and with few: overflow, subnormal numbers, infinities, NaN
    auto bits = static_cast<std::uint32_t>(random());
    if (random.below(2) == 0) bits = (bits & 0x87ffffffu) + 0x34000000u;
    value = std::bit_cast<float>(bits);
  }
  const auto check = [&]<class Half>(Half) {
    std::vector<Half> halves(values.size());
    muster::convert(values, std::span(halves));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const Half expected(values[i]);
      if (std::isnan(float(expected)))
        REQUIRE(std::isnan(float(halves[i])));
      else
        REQUIRE(halves[i].bits == expected.bits);
    }
    std::vector<Half> all(65536);
    for (std::size_t bits = 0; bits < 65536; ++bits) all[bits] = Half::from_bits(static_cast<std::uint16_t>(bits));
    std::vector<float> back(65536), sums(65536, 1.0f);
    muster::convert(std::span<const Half>(all), std::span(back));
    muster::convert_add(std::span<const Half>(all), 0.5f, std::span(sums));
    for (std::size_t bits = 0; bits < 65536; ++bits) {
      const float exact = all[bits];
      REQUIRE((std::isnan(exact) ? std::isnan(back[bits]) : back[bits] == exact));
      REQUIRE((std::isnan(exact) ? std::isnan(sums[bits]) : sums[bits] == 1.0f + 0.5f * exact));
    }
    CHECK_THROWS_AS(muster::convert(std::span<const float>(values), std::span(all)), muster::configuration_error);
  };
  check(muster::float16());
  check(muster::bfloat16());
}
