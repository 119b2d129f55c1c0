// 16-bit floating point as storage: arithmetic uses float, and the result is rounded after every operation.
#pragma once

#include <bit>
#include <cstdint>

namespace muster { inline namespace v0 {

/// A number in IEEE 754 binary16: 1 sign, 5 exponent and 10 fraction bits; largest finite value 65504.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() = default;
  /// Rounds to nearest, ties to even; overflow becomes infinity.
  constexpr explicit(false) float16(float value) noexcept : bits(encode(value)) {}
  constexpr operator float() const noexcept { return decode(bits); }  // NOLINT: reads as the number it is

  /// Returns the number with this bit pattern, NaN payloads included.
  static constexpr float16 from_bits(std::uint16_t bits) noexcept {
    float16 value;
    value.bits = bits;
    return value;
  }

 private:
  static constexpr std::uint16_t encode(float value) noexcept {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);   // NaN
    if (magnitude >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
    if (magnitude < 0x38800000u) {  // subnormal or zero: adding 0.5 aligns the bits, and the FPU rounds them
      const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(aligned) - 0x3f000000u));
    }
    const std::uint32_t odd = (magnitude >> 13) & 1u;
    return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
  }

  static constexpr float decode(std::uint16_t half) noexcept {
    const std::uint32_t sign = (half & 0x8000u) << 16;
    const std::uint32_t rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    if (rest < 0x0400u) {  // subnormal: fraction times 2^-24, exact in float
      const float value = static_cast<float>(rest) * 0x1p-24f;
      return sign != 0 ? -value : value;
    }
    return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  }
};

/// A number with the upper half of a float: 1 sign, 8 exponent and 7 fraction bits.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() = default;
  /// Rounds to nearest, ties to even.
  constexpr explicit(false) bfloat16(float value) noexcept : bits(encode(value)) {}
  constexpr operator float() const noexcept {  // NOLINT: reads as the number it is
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }

  /// Returns the number with this bit pattern, NaN payloads included.
  static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 value;
    value.bits = bits;
    return value;
  }

 private:
  static constexpr std::uint16_t encode(float value) noexcept {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);  // keep NaN quiet
    return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
