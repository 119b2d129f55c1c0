// Stochastic quantisation to 8 bits.
#pragma once

#include <muster/core/codec/codec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A codec with the 127 levels and sign of QSGD (Alistarh et al. 2017, https://arxiv.org/abs/1610.02132), scaled like
/// its authors' implementation: each group of 512 values by the group's largest magnitude M. A value is rounded at
/// random to a neighbouring level, so that the mean is the value itself: unbiased, with an error below M / 127 and a
/// variance of at most (M / 127)^2 / 4. Zeros stay zeros.
///
/// The encoded form contains the M of each group as float, then a signed byte per value, then zeros up to a multiple of
/// 4 bytes.
struct qsgd8_codec {
  static constexpr std::size_t group = 512;  ///< number of values that share a scale
  static constexpr int levels = 127;

  /// Implements the concept `codec`, including its errors; O(count).
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept {
    return (count + group - 1) / group * sizeof(float) + (count + 3) / 4 * 4;
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<qsgd8_codec>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
