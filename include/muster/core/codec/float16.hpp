// Half precision: two bytes a value instead of four.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster::inline v0 {

/// IEEE binary16 of each value, rounded to nearest (Micikevicius et al. 2018, "Mixed precision training",
/// https://arxiv.org/abs/1710.03740). Values from 2^-14 to 65504 keep 11 bits: |x - decoded| <= 2^-11 |x|; smaller ones
/// are off by at most 2^-25, larger ones become infinite.
/// An allreduce adds the halves, which rounds once more with each rank.
struct float16_codec {
  [[nodiscard]] std::string name() const { return "float16"; }
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept { return (count + count % 2) * 2; }
  [[nodiscard]] dtype summed_as() const noexcept { return dtype::float16; }
  [[nodiscard]] bool shares_draw() const noexcept { return false; }
  [[nodiscard]] bool is_biased() const noexcept { return false; }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<float16_codec>);

}  // namespace muster::inline v0
