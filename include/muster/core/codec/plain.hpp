// Codecs that store floats, or 16-bit floating point with two bytes per value.
#pragma once

#include <muster/core/codec/codec.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A codec that rounds each value to the nearest `Number`: float, float16 or bfloat16. An allreduce adds the encoded
/// numbers. A 16-bit sum is rounded once more for each rank.
template <class Number>
struct number_codec {
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept {
    return (count * sizeof(Number) + 3) / 4 * 4;
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};

/// A codec without compression: `--compress none`.
using plain_codec = number_codec<float>;
/// A codec with IEEE binary16 (Micikevicius et al. 2018, "Mixed precision training", https://arxiv.org/abs/1710.03740).
/// Values from 2^-14 to 65504 keep 11 bits: |x - decoded| <= 2^-11 |x|. The error of smaller values is at most 2^-25;
/// larger values become infinite.
using float16_codec = number_codec<float16>;
/// A codec with the upper half of a float (Kalamkar et al. 2019, "A study of bfloat16 for deep learning training",
/// https://arxiv.org/abs/1905.12322): the range of float with 8 bits of precision, |x - decoded| <= 2^-8 |x|.
using bfloat16_codec = number_codec<bfloat16>;
static_assert(codec<plain_codec> && codec<float16_codec>);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
