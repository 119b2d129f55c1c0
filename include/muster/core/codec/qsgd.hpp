// Stochastic quantisation to 8 bits.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster { inline namespace v0 {

/// QSGD with 127 levels and a sign (Alistarh et al. 2017, https://arxiv.org/abs/1610.02132), scaled as their
/// implementation does: each group of 512 values by its largest magnitude M. A value is rounded at random to one of the
/// two levels around it so that its mean is the value itself: unbiased, off by less than M / 127, with a variance of at
/// most (M / 127)^2 / 4. Zeros stay zeros.
///
/// Encoded: the M of each group as float, then a signed byte a value, then zeros up to a multiple of 4.
struct qsgd8_codec {
  static constexpr std::size_t group = 512;  ///< values that share a scale
  static constexpr int levels = 127;

  /// As the concept `codec` defines them, errors included; O(count).
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept {
    return (count + group - 1) / group * sizeof(float) + (count + 3) / 4 * 4;
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<qsgd8_codec>);

}}  // namespace muster::v0
