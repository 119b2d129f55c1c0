#pragma once

#include <muster/core/codec/sign.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include <muster/core/error.hpp>
#include <muster/core/lanes.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/simd.hpp>

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
#include <immintrin.h>
#endif

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline constexpr std::size_t bits_per_word = 32;
inline constexpr std::uint32_t sign_bit = 0x80000000u;

// A kernel that sums magnitudes in intervals, so that sums of floats lose no digits in large arrays.
struct sum_of_magnitudes {
  static double run(const float* values, std::size_t count) {
    constexpr std::size_t stretch = 1024;
    double total = 0;
    for (std::size_t begin = 0; begin < count; begin += stretch) {
      const auto add = [&](std::size_t i, detail::eight_floats& sums) {
        detail::eight_words bits;
        std::memcpy(&bits, values + i, sizeof bits);
        bits &= 0x7fffffffu;
        detail::eight_floats magnitudes;
        std::memcpy(&magnitudes, &bits, sizeof bits);
        sums += magnitudes;
      };
      total += static_cast<double>(detail::sum_in_lanes<detail::eight_floats, float>(
          begin, std::min(count, begin + stretch), add, [&](std::size_t i) { return std::fabs(values[i]); }));
    }
    return total;
  }
};

MUSTER_INLINE std::uint32_t signs_of(const float* values, std::size_t count) {
  std::uint32_t word = 0;
  for (std::size_t bit = 0; bit < count; ++bit) {
    word |= (std::bit_cast<std::uint32_t>(values[bit]) >> 31) << static_cast<std::uint32_t>(bit);
  }
  return word;
}

#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
[[gnu::target("avx2")]] inline std::size_t collect_whole_words(const float* values, std::size_t count,
                                                               std::uint32_t* words) {
  std::size_t i = 0;
  for (; i + bits_per_word <= count; i += bits_per_word) {
    std::uint32_t word = 0;
    for (std::uint32_t part = 0; part < 4; ++part)
      word |= static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_loadu_ps(values + i + 8 * part))) << (8 * part);
    words[i / bits_per_word] = word;
  }
  return i;
}
#endif

MUSTER_INLINE void collect_signs(const float* values, std::size_t count, std::uint32_t* words) {
  for (std::size_t i = 0; i < count; i += bits_per_word)
    words[i / bits_per_word] = signs_of(values + i, std::min(bits_per_word, count - i));
}

MUSTER_INLINE void add_word(std::uint32_t word, std::uint32_t scale, float* sums, std::size_t count) {
  for (std::size_t bit = 0; bit < count; ++bit) {
    const std::uint32_t sign = (word << (31u - static_cast<std::uint32_t>(bit))) & sign_bit;
    sums[bit] += std::bit_cast<float>(scale ^ sign);
  }
}

struct add_signs {
  static void run(const std::uint32_t* words, float scale, float* sums, std::size_t count) {
    const auto scale_bits = std::bit_cast<std::uint32_t>(scale);
    std::size_t i = 0;
    for (; i + bits_per_word <= count; i += bits_per_word)
      add_word(words[i / bits_per_word], scale_bits, sums + i, bits_per_word);
    if (i < count) add_word(words[i / bits_per_word], scale_bits, sums + i, count - i);
  }
};

MUSTER_INLINE void vote_on_word(const std::uint32_t* words, std::size_t stride, std::size_t voters, float scale,
                                float* voted, std::size_t count) {
  std::array<std::int32_t, bits_per_word> balance{};  // positive votes minus negative votes
  for (std::size_t voter = 0; voter < voters; ++voter) {
    const std::uint32_t word = words[voter * stride];
    for (std::size_t bit = 0; bit < bits_per_word; ++bit) {
      balance[bit] += 1 - 2 * static_cast<std::int32_t>((word >> static_cast<std::uint32_t>(bit)) & 1u);
    }
  }
  for (std::size_t bit = 0; bit < count; ++bit) {
    const float side = balance[bit] < 0 ? -scale : scale;
    voted[bit] = balance[bit] == 0 ? 0.0f : side;
  }
}

struct vote {
  static void run(const std::uint32_t* words, std::size_t stride, std::size_t voters, float scale, float* voted,
                  std::size_t count) {
    std::size_t i = 0;
    for (; i + bits_per_word <= count; i += bits_per_word)
      vote_on_word(words + i / bits_per_word, stride, voters, scale, voted + i, bits_per_word);
    if (i < count) vote_on_word(words + i / bits_per_word, stride, voters, scale, voted + i, count - i);
  }
};

MUSTER_INLINE float checked_scale(std::span<const std::byte> encoded, std::size_t count) {
  detail::require_encoded("sign", encoded, sign_codec().encoded_bytes(count), count);
  if (count == 0) return 0;
  float scale = 0;
  std::memcpy(&scale, encoded.data(), sizeof scale);
  if (std::signbit(scale) && !std::isnan(scale)) detail::refuse_encoded("sign", 0, "the scale is negative");
  if (count % bits_per_word != 0) {
    std::uint32_t last = 0;
    std::memcpy(&last, encoded.data() + encoded.size() - sizeof last, sizeof last);
    if (last >> (count % bits_per_word) != 0)
      detail::refuse_encoded("sign", encoded.size() - sizeof last, "it has signs for more values");
  }
  return scale;
}

}  // namespace detail

MUSTER_INLINE void sign_codec::encode(std::span<const float> values, std::uint64_t,
                                      std::span<std::byte> encoded) const {
  detail::require_room("sign", encoded, encoded_bytes(values.size()));
  if (values.empty()) return;
  const double total = detail::run_vectorised<detail::sum_of_magnitudes>(values.data(), values.size());
  const auto scale = static_cast<float>(total / static_cast<double>(values.size()));
  std::memcpy(encoded.data(), &scale, sizeof scale);
  auto* const words = reinterpret_cast<std::uint32_t*>(encoded.data() + sizeof scale);
  std::size_t done = 0;
#if defined(__x86_64__) && !defined(MUSTER_PORTABLE)
  if (detail::has_avx2()) done = detail::collect_whole_words(values.data(), values.size(), words);
#endif
  detail::collect_signs(values.data() + done, values.size() - done, words + done / detail::bits_per_word);
}

MUSTER_INLINE void sign_codec::decode_add(std::span<const std::byte> encoded, std::uint64_t, float weight,
                                          std::span<float> sums) const {
  const float scale = detail::checked_scale(encoded, sums.size());
  if (sums.empty()) return;
  detail::run_vectorised<detail::add_signs>(reinterpret_cast<const std::uint32_t*>(encoded.data() + sizeof scale),
                                            weight * scale, sums.data(), sums.size());
}

MUSTER_INLINE void majority_vote(std::span<const std::byte> encoded, std::size_t voters, std::size_t stride,
                                 std::span<float> voted) {
  const std::size_t bytes = sign_codec().encoded_bytes(voted.size());
  if (voters == 0)
    throw configuration_error("a majority needs voters (there are none); give the encoded signs of at least one rank");
  if (stride < bytes || stride % 4 != 0) {
    throw configuration_error("signs cannot be " + std::to_string(stride) + " bytes apart (the signs of " +
                              std::to_string(voted.size()) + " values need " + std::to_string(bytes) +
                              " bytes, aligned to 4); give the bytes of a voter");
  }
  detail::require_encoded("sign", encoded, (voters - 1) * stride + bytes, voted.size());
  double scales = 0;
  for (std::size_t voter = 0; voter < voters; ++voter)
    scales += static_cast<double>(detail::checked_scale(encoded.subspan(voter * stride, bytes), voted.size()));
  if (voted.empty()) return;
  const auto scale = static_cast<float>(scales);
  if (std::isnan(scale)) {  // also in a tie: a gradient that diverged remains NaN
    std::fill(voted.begin(), voted.end(), scale);
    return;
  }
  detail::run_vectorised<detail::vote>(reinterpret_cast<const std::uint32_t*>(encoded.data() + sizeof scale),
                                       stride / 4, voters, scale, voted.data(), voted.size());
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
