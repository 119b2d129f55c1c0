// The upper half of each float: two bytes a value instead of four.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster::inline v0 {

/// bfloat16 of each value, rounded to nearest (Kalamkar et al. 2019, "A study of bfloat16 for deep learning training",
/// https://arxiv.org/abs/1905.12322): the range of float and 8 bits of it, |x - decoded| <= 2^-8 |x|.
/// An allreduce adds the halves, which rounds once more with each rank.
struct bfloat16_codec {
  [[nodiscard]] std::string name() const { return "bfloat16"; }
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept { return (count + count % 2) * 2; }
  [[nodiscard]] dtype summed_as() const noexcept { return dtype::bfloat16; }
  [[nodiscard]] bool shares_draw() const noexcept { return false; }
  [[nodiscard]] bool is_biased() const noexcept { return false; }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<bfloat16_codec>);

}  // namespace muster::inline v0
