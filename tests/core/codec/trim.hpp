// A codec outside the library, `trim:BYTES`: sends the highest bytes per value.
#pragma once

#include <cstring>

#include <muster/core/codec/compression.hpp>
#include <muster/core/plugin.hpp>

namespace test {

struct trim_codec {
  std::size_t kept_bytes;  // bytes per value

  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const { return (count * kept_bytes + 3) / 4 * 4; }
  void encode(std::span<const float> values, std::uint64_t /*draw*/, std::span<std::byte> encoded) const {
    muster::detail::require_room("trim", encoded, encoded_bytes(values.size()));
    for (std::size_t k = 0; k < values.size(); ++k)
      std::memcpy(encoded.data() + k * kept_bytes, std::as_bytes(values).data() + (k + 1) * sizeof(float) - kept_bytes,
                  kept_bytes);
    for (std::size_t at = values.size() * kept_bytes; at < encoded.size(); ++at) encoded[at] = std::byte{0};
  }
  void decode_add(std::span<const std::byte> encoded, std::uint64_t /*draw*/, float weight,
                  std::span<float> sums) const {
    muster::detail::require_encoded("trim", encoded, encoded_bytes(sums.size()), sums.size());
    for (std::size_t k = 0; k < sums.size(); ++k) {
      float value = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&value) + sizeof value - kept_bytes, encoded.data() + k * kept_bytes,
                  kept_bytes);
      sums[k] += weight * value;
    }
  }
};

inline const muster::plugin trim("trim", [] {
  muster::register_codec("trim", [](muster::spec_reader& spec) {
    const auto kept_bytes = spec.read_whole("bytes", spec.value("bytes"), 1, 4);
    return muster::any_codec(trim_codec{kept_bytes}, {.is_biased = kept_bytes < 4});
  });
});

}  // namespace test
