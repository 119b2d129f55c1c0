#include <muster/core/codec/float16.hpp>

#include <muster/core/convert.hpp>

namespace muster::inline v0 {

void float16_codec::encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
  detail::require_room("float16", encoded, encoded_bytes(values.size()));
  auto* const halves = reinterpret_cast<float16*>(encoded.data());
  convert(values, std::span(halves, values.size()));
  if (values.size() % 2 != 0) halves[values.size()] = float16();
}

void float16_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                               std::span<float> sums) const {
  detail::require_encoded("float16", encoded, encoded_bytes(sums.size()), sums.size());
  detail::require_zeros("float16", encoded, sums.size() * sizeof(float16));
  convert_add(std::span(reinterpret_cast<const float16*>(encoded.data()), sums.size()), weight, sums);
}

}  // namespace muster::inline v0
