#include "image_wide.hpp"

#include <algorithm>

#ifdef __x86_64__

#include <immintrin.h>

namespace muster::inline v0::detail {
namespace {

constexpr int wide_block = 32;  // pixels: the bytes of three channels are a vector and a half
constexpr std::size_t most_wide_blocks = most_wide_width / wide_block;

/// Of each of the 96 bytes of a block of pixels: the pixel, and where its channel begins in three times 32 bytes.
constexpr auto bytes_of_block = [] {
  struct tables {
    std::array<std::uint8_t, 128> pixel{}, channel{};
  } made;
  for (std::size_t k = 0; k < 3 * wide_block; ++k) {
    made.pixel[k] = static_cast<std::uint8_t>(k / 3);
    made.channel[k] = static_cast<std::uint8_t>(k % 3 * wide_block);
  }
  return made;
}();

/// What one block of a row is made of: where its bytes are loaded from, and which of these, red before green before
/// blue, each byte of its pixels is. Those outside of the image are none.
struct pixel_block {
  std::size_t to;    // first pixel written
  std::size_t from;  // first byte loaded of each plane
  __m512i low, high;
  __mmask64 low_inside, high_inside;
};

[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")]] pixel_block cut_block(int begin, int width,
                                                                              const image_choice& choice) noexcept {
  const int first = choice.right + (choice.flip ? width - wide_block - begin : begin);
  const int from = std::clamp(first, 0, width - wide_block);
  alignas(64) std::array<std::int8_t, 64> places{};
  for (int pixel = 0; pixel < wide_block; ++pixel) {
    const int place = first - from + (choice.flip ? wide_block - 1 - pixel : pixel);
    places[static_cast<std::size_t>(pixel)] = static_cast<std::int8_t>(place >= 0 && place < wide_block ? place : -1);
  }
  const __m512i of_pixel = _mm512_load_si512(places.data());
  const __m512i low = _mm512_permutexvar_epi8(_mm512_loadu_si512(bytes_of_block.pixel.data()), of_pixel);
  const __m512i high = _mm512_permutexvar_epi8(_mm512_loadu_si512(bytes_of_block.pixel.data() + 64), of_pixel);
  return {static_cast<std::size_t>(begin),
          static_cast<std::size_t>(from),
          _mm512_add_epi8(low, _mm512_loadu_si512(bytes_of_block.channel.data())),
          _mm512_add_epi8(high, _mm512_loadu_si512(bytes_of_block.channel.data() + 64)),
          ~_mm512_movepi8_mask(low),
          ~_mm512_movepi8_mask(high)};
}

/// Sixteen values from as many bytes.
[[gnu::target("avx512f"), gnu::always_inline]] inline void store_values(float* to, __m128i bytes, __m512 scale,
                                                                        __m512 shift) noexcept {
  _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale, shift));
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
  std::array<pixel_block, most_wide_blocks> blocks;
  std::size_t count = 0;
  for (int x = 0; x < width; x += wide_block)
    blocks[count++] =
        cut_block(std::min(x, width - wide_block), width, choice);  // the last one goes over some pixels again
  // Sixteen values begin with any of the three channels, and then with each in turn.
  const __m512 a = by_channel(scale, 0), b = by_channel(scale, 16), c = by_channel(scale, 32);
  const __m512 d = by_channel(shift, 0), e = by_channel(shift, 16), f = by_channel(shift, 32);
  for (int y = 0; y < height; ++y, to += 3 * shape.width) {
    const int row = y + choice.down;
    const bool inside = row >= 0 && row < height;
    const std::uint8_t* const bytes = from + static_cast<std::size_t>(inside ? row : 0) * shape.width;
    for (std::size_t n = 0; n < count; ++n) {
      const pixel_block& at = blocks[n];
      const auto load = [&](std::size_t channel) {
        return reinterpret_cast<const __m256i*>(bytes + at.from + channel * plane);
      };
      const __m512i two =
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(load(0))), _mm256_loadu_si256(load(1)), 1);
      const __m512i third = _mm512_castsi256_si512(_mm256_loadu_si256(load(2)));
      const __mmask64 all = inside ? ~__mmask64{0} : 0;
      const __m512i low = _mm512_maskz_permutex2var_epi8(at.low_inside & all, two, at.low, third);
      const __m512i high = _mm512_maskz_permutex2var_epi8(at.high_inside & all, two, at.high, third);
      float* const pixels = to + 3 * at.to;
      store_values(pixels, _mm512_castsi512_si128(low), a, d);
      store_values(pixels + 16, _mm512_extracti32x4_epi32(low, 1), b, e);
      store_values(pixels + 32, _mm512_extracti32x4_epi32(low, 2), c, f);
      store_values(pixels + 48, _mm512_extracti32x4_epi32(low, 3), a, d);
      store_values(pixels + 64, _mm512_castsi512_si128(high), b, e);
      store_values(pixels + 80, _mm512_extracti32x4_epi32(high, 1), c, f);
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
