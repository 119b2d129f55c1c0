#include <muster/core/float16.hpp>

#include <cmath>
#include <limits>

#include <muster/core/dtype.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"

TEST_CASE("every float16 and bfloat16 survives the way to float and back") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = muster::float16::from_bits(static_cast<std::uint16_t>(bits));
    const auto brain = muster::bfloat16::from_bits(static_cast<std::uint16_t>(bits));
    if (!std::isnan(float(half))) REQUIRE(muster::float16(float(half)).bits == bits);
    if (!std::isnan(float(brain))) REQUIRE(muster::bfloat16(float(brain)).bits == bits);
    if (std::isnan(float(half))) REQUIRE(std::isnan(float(muster::float16(float(half)))));
    if (std::isnan(float(brain))) REQUIRE(std::isnan(float(muster::bfloat16(float(brain)))));
  }
}

// The oracle: returns the nearest representable value, and in a tie the even value.
template <class Half>
std::uint16_t nearest(float value, std::uint16_t guess) {
  std::uint16_t best = guess;
  double best_distance = std::numeric_limits<double>::infinity();
  for (int step = -2; step <= 2; ++step) {
    const auto bits = static_cast<std::uint16_t>(guess + step);
    const float candidate = Half::from_bits(bits);
    if (!std::isfinite(candidate) || std::signbit(candidate) != std::signbit(value)) continue;
    const double distance = std::fabs(double(candidate) - double(value));
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = bits;
      best_distance = distance;
    }
  }
  return best;
}

TEST_CASE("rounding is to nearest, ties to even") {
  muster::random_stream random(7);
  for (int i = 0; i < 200000; ++i) {
    const auto exponent = static_cast<int>(random.below(38)) - 24;
    auto value = static_cast<float>(std::ldexp(1.0 + random.uniform(), exponent > 14 ? 14 : exponent));
    if (i % 4 == 0) value = float(muster::float16(value)) * (1.0f + 0x1p-11f);  // ties and near ties
    if (i % 2 == 0) value = -value;
    const muster::float16 half(value);
    INFO("value " << value);
    REQUIRE(half.bits == nearest<muster::float16>(value, half.bits));
    const muster::bfloat16 brain(value);
    REQUIRE(brain.bits == nearest<muster::bfloat16>(value, brain.bits));
  }
  CHECK(float(muster::float16(65519.0f)) == 65504.0f);
  CHECK(std::isinf(float(muster::float16(65520.0f))));
  CHECK(std::isinf(float(muster::float16(std::numeric_limits<float>::infinity()))));
  CHECK(muster::float16(-0.0f).bits == 0x8000u);
}

TEST_CASE("dtypes tell types apart by kind and size") {
  static_assert(muster::dtype_of<float>() == muster::dtype::float32);
  static_assert(muster::dtype_of<std::int8_t>() == muster::dtype::int8);
  static_assert(muster::dtype_of<unsigned long long>() == muster::dtype::uint64);
  static_assert(muster::size_of(muster::dtype_of<double>()) == sizeof(double));
  static_assert(muster::element<muster::bfloat16> && !muster::element<void*> && !muster::element<const int>);
  CHECK(muster::to_string(muster::dtype::extended) == "extended");
}
