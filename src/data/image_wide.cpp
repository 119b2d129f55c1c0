#include "image_wide.hpp"

#include <algorithm>

#ifdef __x86_64__

#include <immintrin.h>

namespace muster::inline v0::detail {
namespace {

constexpr int wide_block = 32;                        // pixels
constexpr std::size_t vectors = 3 * wide_block / 16;  // of sixteen values each, that a block becomes

/// Of each of the sixteen values of a vector: its pixel, and where its channel begins in three times 32 bytes. They
/// stand where a value of 32 bits has its low byte; the bytes between are not read.
constexpr auto values_of_block = [] {
  struct tables {
    alignas(64) std::array<std::array<std::uint8_t, 64>, vectors> pixel{}, channel{};
  } made;
  for (std::size_t value = 0; value < 3 * wide_block; ++value) {
    made.pixel[value / 16][value % 16 * 4] = static_cast<std::uint8_t>(value / 3);
    made.channel[value / 16][value % 16 * 4] = static_cast<std::uint8_t>(value % 3 * wide_block);
  }
  return made;
}();

/// What a block of the pixels of every row is made of: where its bytes are loaded from, and which of these, red before
/// green before blue, are the low bytes of its values. Those outside of the image are none.
struct pixel_block {
  std::size_t to;    // first pixel written
  std::size_t from;  // first byte loaded of each plane
  __m512i bytes[vectors];
  __mmask64 inside[vectors];
};

[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi"), gnu::always_inline]] inline pixel_block cut_block(
    int begin, int width, const image_choice& choice) noexcept {
  const int first = choice.right + (choice.flip ? width - wide_block - begin : begin);
  const int from = std::clamp(first, 0, width - wide_block);
  // More than a block off is as far off as a block.
  const __m256i off = _mm256_set1_epi8(static_cast<char>(std::clamp(first - from, -wide_block, wide_block)));
  const __m256i count = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                         22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  const __m256i place =
      _mm256_add_epi8(choice.flip ? _mm256_sub_epi8(_mm256_set1_epi8(wide_block - 1), count) : count, off);
  const __mmask32 is_there = _mm256_cmplt_epu8_mask(place, _mm256_set1_epi8(wide_block));
  const __m512i of_pixel = _mm512_castsi256_si512(_mm256_mask_blend_epi8(is_there, _mm256_set1_epi8(-1), place));
  pixel_block made{static_cast<std::size_t>(begin), static_cast<std::size_t>(from), {}, {}};
  for (std::size_t k = 0; k < vectors; ++k) {
    const __m512i at = _mm512_permutexvar_epi8(_mm512_load_si512(values_of_block.pixel[k].data()), of_pixel);
    constexpr __mmask64 low_bytes = 0x1111'1111'1111'1111;
    made.inside[k] = ~_mm512_movepi8_mask(at) & low_bytes;
    made.bytes[k] = _mm512_add_epi8(at, _mm512_load_si512(values_of_block.channel[k].data()));
  }
  return made;
}

/// What belongs to sixteen values from the `first` byte of a pixel on.
[[gnu::target("avx512f")]] __m512 by_channel(const std::array<float, 3>& of, std::size_t first) noexcept {
  alignas(64) std::array<float, 16> values;
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = of[(first + k) % 3];
  return _mm512_load_ps(values.data());
}

}  // namespace

bool has_wide_shuffles() noexcept {
  static const bool there = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                            __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  return there;
}

[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")]] void convert_to_pixels_wide(
    const image_shape& shape, const std::array<float, 3>& scale, const std::array<float, 3>& shift,
    const image_choice& choice, const std::uint8_t* from, float* to) noexcept {
  const int height = static_cast<int>(shape.height);
  const int width = static_cast<int>(shape.width);
  const std::size_t plane = shape.height * shape.width;
  // Sixteen values begin with any of the three channels, and then with each in turn.
  const __m512 scales[] = {by_channel(scale, 0), by_channel(scale, 16), by_channel(scale, 32)};
  const __m512 shifts[] = {by_channel(shift, 0), by_channel(shift, 16), by_channel(shift, 32)};
  const __m512 zero = _mm512_setzero_ps();
  const __m512 outside[] = {_mm512_fmadd_ps(zero, scales[0], shifts[0]), _mm512_fmadd_ps(zero, scales[1], shifts[1]),
                            _mm512_fmadd_ps(zero, scales[2], shifts[2])};
  for (int x = 0; x < width; x += wide_block) {
    // The last one goes over some pixels again.
    const pixel_block block = cut_block(std::min(x, width - wide_block), width, choice);
    float* pixels = to + 3 * block.to;
    for (int y = 0; y < height; ++y, pixels += 3 * shape.width) {
      const int row = y + choice.down;
      if (row < 0 || row >= height) {
#pragma GCC unroll 6
        for (std::size_t k = 0; k < vectors; ++k) _mm512_storeu_ps(pixels + 16 * k, outside[k % 3]);
        continue;
      }
      const std::uint8_t* const bytes = from + static_cast<std::size_t>(row) * shape.width + block.from;
      const auto load = [&](std::size_t channel) { return reinterpret_cast<const __m256i*>(bytes + channel * plane); };
      const __m512i two =
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(load(0))), _mm256_loadu_si256(load(1)), 1);
      const __m512i third = _mm512_castsi256_si512(_mm256_loadu_si256(load(2)));
#pragma GCC unroll 6
      for (std::size_t k = 0; k < vectors; ++k) {
        const __m512i values = _mm512_maskz_permutex2var_epi8(block.inside[k], two, block.bytes[k], third);
        _mm512_storeu_ps(pixels + 16 * k, _mm512_fmadd_ps(_mm512_cvtepi32_ps(values), scales[k % 3], shifts[k % 3]));
      }
    }
  }
}

}  // namespace muster::inline v0::detail

#else

namespace muster::inline v0::detail {

bool has_wide_shuffles() noexcept { return false; }

void convert_to_pixels_wide(const image_shape& /*shape*/, const std::array<float, 3>& /*scale*/,
                            const std::array<float, 3>& /*shift*/, const image_choice& /*choice*/,
                            const std::uint8_t* /*from*/, float* /*to*/) noexcept {}

}  // namespace muster::inline v0::detail
#endif
