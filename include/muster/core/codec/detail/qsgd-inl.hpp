#pragma once

#include <muster/core/codec/qsgd.hpp>

#include <algorithm>
#include <bit>
#include <cmath>

#include <muster/core/codec/draws.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/simd.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr float levels = qsgd8_codec::levels;

// A kernel that finds the largest magnitude by comparing magnitudes as integers, which have the same order, with NaN
// above all.
struct largest_magnitude {
  static float run(const float* values, std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i)
      largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu);
    return std::bit_cast<float>(largest);
  }
};

struct quantise {
  static void run(const float* values, std::size_t count, std::uint32_t first, detail::draw_key draw, float scale,
                  std::int8_t* levels_out) {
    for (std::size_t i = 0; i < count; ++i) {
      const float level = std::fabs(values[i]) / scale * levels;
      const float random =
          static_cast<float>(static_cast<std::int32_t>(draw(first + static_cast<std::uint32_t>(i)) >> 8)) * 0x1p-24f;
      const auto rounded = static_cast<std::int32_t>(std::min(level + random, levels));
      levels_out[i] = static_cast<std::int8_t>(values[i] < 0.0f ? -rounded : rounded);
    }
  }
};

struct add_levels {
  static void run(const std::int8_t* source, std::size_t count, float scale, float* destination) {
    for (std::size_t i = 0; i < count; ++i) destination[i] += scale * (static_cast<float>(source[i]) * (1.0f / levels));
  }
};

struct any_below_all_levels {
  static bool run(const std::int8_t* source, std::size_t count) {
    std::uint8_t found = 0;
    for (std::size_t i = 0; i < count; ++i) found = static_cast<std::uint8_t>(found | (source[i] == -128 ? 1 : 0));
    return found != 0;
  }
};

}  // namespace detail

MUSTER_INLINE void qsgd8_codec::encode(std::span<const float> values, std::uint64_t draw,
                                       std::span<std::byte> encoded) const {
  detail::require_room("qsgd8", encoded, encoded_bytes(values.size()));
  const std::size_t groups = (values.size() + group - 1) / group;
  auto* const scales = reinterpret_cast<float*>(encoded.data());
  auto* const bytes = reinterpret_cast<std::int8_t*>(scales + groups);
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first = g * group;
    const std::size_t count = std::min(group, values.size() - first);
    const float scale = detail::run_vectorised<detail::largest_magnitude>(values.data() + first, count);
    scales[g] = scale;
    if (scale > 0.0f && std::isfinite(scale)) {
      // The random words would repeat every 2^32 values.
      const detail::draw_key key(draw + (first >> 32));
      detail::run_vectorised<detail::quantise>(values.data() + first, count, static_cast<std::uint32_t>(first), key,
                                               scale, bytes + first);
    } else {
      std::fill_n(bytes + first, count,
                  std::int8_t{0});  // 0 times a non-finite scale is NaN: the whole group becomes NaN
    }
  }
  std::fill(bytes + values.size(), reinterpret_cast<std::int8_t*>(encoded.data() + encoded.size()), std::int8_t{0});
}

MUSTER_INLINE void qsgd8_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                           std::span<float> sums) const {
  detail::require_encoded("qsgd8", encoded, encoded_bytes(sums.size()), sums.size());
  const std::size_t groups = (sums.size() + group - 1) / group;
  const auto* const scales = reinterpret_cast<const float*>(encoded.data());
  const auto* const bytes = reinterpret_cast<const std::int8_t*>(scales + groups);
  const auto offset_of = [&](std::size_t i) { return groups * sizeof(float) + i; };
  for (std::size_t g = 0; g < groups; ++g) {
    if (std::signbit(scales[g]) && !std::isnan(scales[g]))
      detail::refuse_encoded("qsgd8", g * sizeof(float), "a scale is negative");
  }
  if (detail::run_vectorised<detail::any_below_all_levels>(bytes, sums.size())) {
    const auto at = static_cast<std::size_t>(std::find(bytes, bytes + sums.size(), std::int8_t{-128}) - bytes);
    detail::refuse_encoded("qsgd8", offset_of(at), "level -128 does not exist");
  }
  detail::require_zeros("qsgd8", encoded, offset_of(sums.size()));
  for (std::size_t g = 0; g < groups; ++g) {
    const std::size_t first = g * group;
    const std::size_t count = std::min(group, sums.size() - first);
    detail::run_vectorised<detail::add_levels>(bytes + first, count, weight * scales[g], sums.data() + first);
  }
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
