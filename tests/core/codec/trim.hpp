// Codecs outside the library: `trim:BYTES` sends the highest bytes per value, `stride:N` every N-th value, from a drawn
// position that all ranks share.
#pragma once

#include <cstring>

#include <muster/core/codec/compression.hpp>
#include <muster/core/plugin.hpp>
#include <muster/core/random.hpp>

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

struct stride_codec {
  std::size_t stride;

  [[nodiscard]] std::size_t encoded_bytes(std::size_t count) const {
    return (count + stride - 1) / stride * sizeof(float);
  }
  void encode(std::span<const float> values, std::uint64_t draw, std::span<std::byte> encoded) const {
    muster::detail::require_room("stride", encoded, encoded_bytes(values.size()));
    auto* sent = reinterpret_cast<float*>(encoded.data());
    const std::size_t begin = muster::random_stream(draw).below(stride);
    for (std::size_t k = 0; k < values.size(); k += stride) *sent++ = values[(begin + k) % values.size()];
  }
  void decode_add(std::span<const std::byte> encoded, std::uint64_t draw, float weight, std::span<float> sums) const {
    muster::detail::require_encoded("stride", encoded, encoded_bytes(sums.size()), sums.size());
    const auto* sent = reinterpret_cast<const float*>(encoded.data());
    const std::size_t begin = muster::random_stream(draw).below(stride);
    for (std::size_t k = 0; k < sums.size(); k += stride) sums[(begin + k) % sums.size()] += weight * *sent++;
  }
};

inline const muster::plugin trim("trim", [] {
  muster::register_codec("trim", [](muster::spec_reader& spec) {
    const auto kept_bytes = spec.read_whole("bytes", spec.value("bytes"), 1, 4);
    return muster::any_codec(trim_codec{kept_bytes}, {.is_biased = kept_bytes < 4});
  });
  muster::register_codec("stride", [](muster::spec_reader& spec) {
    const auto stride = spec.read_whole("values", spec.value("values"), 1, 100);
    return muster::any_codec(stride_codec{stride}, {.summed_as = muster::dtype::float32, .shares_draw = true});
  });
});

}  // namespace test
