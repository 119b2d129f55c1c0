// No compression, for where a codec is asked for.
#pragma once

#include <muster/core/codec/codec.hpp>

namespace muster::inline v0 {

/// The values as they are: `--compress none`.
struct plain_codec {
  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const noexcept { return count * sizeof(float); }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const;
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const;
};
static_assert(codec<plain_codec>);

}  // namespace muster::inline v0
