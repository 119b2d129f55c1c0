#include <muster/core/codec/plain.hpp>

#include <algorithm>

namespace muster::inline v0 {

void plain_codec::encode(std::span<const float> values, std::uint64_t, std::span<std::byte> encoded) const {
  detail::require_room("none", encoded, encoded_bytes(values.size()));
  std::ranges::copy(std::as_bytes(values), encoded.begin());
}

void plain_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                             std::span<float> sums) const {
  detail::require_encoded("none", encoded, encoded_bytes(sums.size()), sums.size());
  const auto* const values = reinterpret_cast<const float*>(encoded.data());
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += weight * values[i];
}

}  // namespace muster::inline v0
