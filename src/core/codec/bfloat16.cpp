#include <muster/core/codec/bfloat16.hpp>

#include <muster/core/convert.hpp>

namespace muster::inline v0 {

void bfloat16_codec::encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
  detail::require_room("bfloat16", encoded, encoded_bytes(values.size()));
  auto* const halves = reinterpret_cast<bfloat16*>(encoded.data());
  convert(values, std::span(halves, values.size()));
  if (values.size() % 2 != 0) halves[values.size()] = bfloat16();
}

void bfloat16_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                std::span<float> sums) const {
  detail::require_encoded("bfloat16", encoded, encoded_bytes(sums.size()), sums.size());
  detail::require_zeros("bfloat16", encoded, sums.size() * sizeof(bfloat16));
  convert_add(std::span(reinterpret_cast<const bfloat16*>(encoded.data()), sums.size()), weight, sums);
}

}  // namespace muster::inline v0
