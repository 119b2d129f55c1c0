#pragma once

#include <muster/core/inline.hpp>
#include <muster/data/image.hpp>

#include <algorithm>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#ifdef __x86_64__
#include <immintrin.h>
#endif

// A value is byte * scale + shift, rounded once. The code uses a fused multiplication if the machine has one, and
// double arithmetic otherwise. In double the product is exact, and so is the sum if the magnitudes of the summands
// differ by a factor of at most 2^20. The results are equal bit for bit on all machines.

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data {
namespace detail {
// Fills the cutout with zeros.
inline void erase(const image_conversion& conversion, const image_choice& choice, float* output) noexcept {
  if (choice.cutout_top >= choice.cutout_bottom || choice.cutout_left >= choice.cutout_right) return;
  const image_shape& shape = conversion.shape;
  const std::size_t runs = conversion.output == image_layout::hwc ? 1 : shape.channels;
  const std::size_t step = conversion.output == image_layout::hwc ? shape.channels : 1;
  for (std::size_t run = 0; run < runs; ++run) {
    for (auto y = static_cast<std::size_t>(choice.cutout_top); y < static_cast<std::size_t>(choice.cutout_bottom);
         ++y) {
      float* const row = output + ((run * shape.height) + y) * shape.width * step;
      std::fill(row + static_cast<std::size_t>(choice.cutout_left) * step,
                row + static_cast<std::size_t>(choice.cutout_right) * step, 0.0f);
    }
  }
}

#ifdef __x86_64__

inline constexpr int vector_pixels = 16;  // number of pixels in a vector
inline constexpr std::size_t most_blocks = 32;

/// The source for a vector in a row of `width` bytes: the load address, and the shuffle that moves the loaded bytes to
/// their places. Bytes outside the row become zero.
struct window_block {
  std::size_t destination;  // first pixel written
  std::size_t source;       // first byte loaded
  __m128i move;
};

inline __attribute__((target("avx2,fma"))) std::size_t cut_blocks(int width, const image_choice& choice,
                                                                  window_block* blocks) noexcept {
  const __m128i straight = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m128i mirrored = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  std::size_t count = 0;
  for (int x = 0;; x += vector_pixels) {
    const int begin = std::min(x, width - vector_pixels);  // the last vector overlaps the previous vector
    const int first = choice.right + (choice.flip ? width - vector_pixels - begin : begin);
    const int source = std::clamp(first, 0, width - vector_pixels);
    // Bytes in front of the loaded vector have a negative index, for which a shuffle returns 0. The index of bytes
    // after the loaded vector is made negative too.
    const auto shift = static_cast<std::int8_t>(std::clamp(first - source, -vector_pixels, vector_pixels));
    const __m128i moved = _mm_add_epi8(choice.flip ? mirrored : straight, _mm_set1_epi8(shift));
    const __m128i beyond = _mm_cmpgt_epi8(moved, _mm_set1_epi8(vector_pixels - 1));
    blocks[count++] = {static_cast<std::size_t>(begin), static_cast<std::size_t>(source), _mm_or_si128(moved, beyond)};
    if (begin + vector_pixels >= width) return count;
  }
}

__attribute__((target("avx2,fma"), always_inline)) inline void store_values(float* output, const std::uint8_t* bytes,
                                                                            __m256 scale, __m256 shift) noexcept {
  const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  _mm256_storeu_ps(output, _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight)), scale, shift));
}

/// Converts planes to planes. A grey image is a single plane.
inline __attribute__((target("avx2,fma"))) void convert_planes(const image_conversion& conversion,
                                                               const image_choice& choice, const std::uint8_t* input,
                                                               float* output) noexcept {
  const image_shape& shape = conversion.shape;
  std::array<window_block, most_blocks> blocks;
  const std::size_t count = cut_blocks(static_cast<int>(shape.width), choice, blocks.data());
  const int height = static_cast<int>(shape.height);
  for (std::size_t channel = 0; channel < shape.channels; ++channel) {
    const __m256 scales = _mm256_set1_ps(conversion.scale[channel]);
    const __m256 shifts = _mm256_set1_ps(conversion.shift[channel]);
    const std::uint8_t* const plane = input + channel * shape.height * shape.width;
    for (int y = 0; y < height; ++y, output += shape.width) {
      const int row = y + choice.down;
      const bool inside = row >= 0 && row < height;
      const std::uint8_t* const bytes = plane + static_cast<std::size_t>(inside ? row : 0) * shape.width;
      for (std::size_t b = 0; b < count; ++b) {
        const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + blocks[b].source));
        const __m128i moved = inside ? _mm_shuffle_epi8(loaded, blocks[b].move) : _mm_setzero_si128();
        alignas(16) std::uint8_t cut[vector_pixels];
        _mm_store_si128(reinterpret_cast<__m128i*>(cut), moved);
        store_values(output + blocks[b].destination, cut, scales, shifts);
        store_values(output + blocks[b].destination + 8, cut + 8, scales, shifts);
      }
    }
  }
}

/// Shuffles for interleaving. The 48 bytes of 16 pixels with three channels are three vectors; byte k belongs to pixel
/// k / 3 and channel k % 3. spread[part][channel] has the source index for each byte in vector `part`, or -1 for bytes
/// of other channels.
inline constexpr auto spread = [] {
  std::array<std::array<std::array<std::int8_t, vector_pixels>, 3>, 3> places{};
  for (std::size_t k = 0; k < 3 * vector_pixels; ++k) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      places[k / vector_pixels][channel][k % vector_pixels] =
          k % 3 == channel ? static_cast<std::int8_t>(k / 3) : std::int8_t{-1};
    }
  }
  return places;
}();

__attribute__((target("avx2,fma"), always_inline)) inline __m256i load_two(const std::uint8_t* low,
                                                                           const std::uint8_t* high) noexcept {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

/// Converts three planes to interleaved pixels.
inline __attribute__((target("avx2,fma"))) void convert_to_pixels(const image_conversion& conversion,
                                                                  const image_choice& choice, const std::uint8_t* input,
                                                                  float* output) noexcept {
  const image_shape& shape = conversion.shape;
  std::array<window_block, most_blocks + 1> blocks;
  std::size_t count = cut_blocks(static_cast<int>(shape.width), choice, blocks.data());
  if (count % 2 != 0) {  // the loop below handles two blocks at a time
    blocks[count] = blocks[count - 1];
    ++count;
  }
  // One shuffle does both the move and the interleaving. The highest bit of an index is set if the byte is zero in
  // either.
  __m256i moves[(most_blocks + 1) / 2][3][3];
  for (std::size_t n = 0; n < count; n += 2) {
    const __m256i move = _mm256_set_m128i(blocks[n + 1].move, blocks[n].move);
    for (std::size_t part = 0; part < 3; ++part) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        const __m256i places = _mm256_broadcastsi128_si256(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(spread[part][channel].data())));
        moves[n / 2][part][channel] =
            _mm256_or_si256(_mm256_shuffle_epi8(move, places), _mm256_and_si256(places, _mm256_set1_epi8(-128)));
      }
    }
  }
  const auto [s0, s1, s2] = conversion.scale;
  const auto [t0, t1, t2] = conversion.shift;
  const __m256 a = _mm256_setr_ps(s0, s1, s2, s0, s1, s2, s0, s1);
  const __m256 b = _mm256_setr_ps(s2, s0, s1, s2, s0, s1, s2, s0);
  const __m256 c = _mm256_setr_ps(s1, s2, s0, s1, s2, s0, s1, s2);
  const __m256 d = _mm256_setr_ps(t0, t1, t2, t0, t1, t2, t0, t1);
  const __m256 e = _mm256_setr_ps(t2, t0, t1, t2, t0, t1, t2, t0);
  const __m256 f = _mm256_setr_ps(t1, t2, t0, t1, t2, t0, t1, t2);
  static constexpr std::array<std::uint8_t, 3 * vector_pixels * most_blocks> zeros{};
  alignas(32) std::array<std::uint8_t, 3 * vector_pixels * most_blocks> mixed;
  const std::size_t plane = shape.height * shape.width;
  const int height = static_cast<int>(shape.height);
  const std::size_t width = shape.width;
  const std::size_t values_of_row = 3 * width;
  for (int y = 0; y < height; ++y, output += values_of_row) {
    const int row = y + choice.down;
    const bool inside = row >= 0 && row < height;
    const std::uint8_t* const bytes = input + static_cast<std::size_t>(inside ? row : 0) * width;
    // Writes the pixels to memory first, because a load that widens bytes needs no additional shuffle.
    for (std::size_t n = 0; inside && n < count; n += 2) {
      const auto& move = moves[n / 2];
      const std::uint8_t* const left = bytes + blocks[n].source;
      const std::uint8_t* const right = bytes + blocks[n + 1].source;
      const __m256i red = load_two(left, right);
      const __m256i green = load_two(left + plane, right + plane);
      const __m256i blue = load_two(left + 2 * plane, right + 2 * plane);
      for (std::size_t part = 0; part < 3; ++part) {
        const __m256i pixels = _mm256_or_si256(
            _mm256_or_si256(_mm256_shuffle_epi8(red, move[part][0]), _mm256_shuffle_epi8(green, move[part][1])),
            _mm256_shuffle_epi8(blue, move[part][2]));
        std::uint8_t* const first = mixed.data() + 3 * blocks[n].destination + part * vector_pixels;
        std::uint8_t* const second = mixed.data() + 3 * blocks[n + 1].destination + part * vector_pixels;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm256_castsi256_si128(pixels));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(second), _mm256_extracti128_si256(pixels, 1));
      }
    }
    const std::uint8_t* const values = inside ? mixed.data() : zeros.data();
    for (std::size_t done = 0; done < values_of_row; done += 24) {
      const std::size_t at = std::min(done, values_of_row - 24);  // the last step overlaps the previous step
      store_values(output + at, values + at, a, d);
      store_values(output + at + 8, values + at + 8, b, e);
      store_values(output + at + 16, values + at + 16, c, f);
    }
  }
}

inline constexpr int wide_block = 32;                        // pixels
inline constexpr std::size_t vectors = 3 * wide_block / 16;  // number of vectors of sixteen values for each block

/// Tables for the sixteen values in a vector: the value's pixel, and the offset of the value's channel in three
/// times 32 bytes. Each entry is in the low byte of a 32-bit value. The bytes between the entries are not read.
inline constexpr auto values_of_block = [] {
  struct tables {
    alignas(64) std::array<std::array<std::uint8_t, 64>, vectors> pixel{}, channel{};
  } result;
  for (std::size_t value = 0; value < 3 * wide_block; ++value) {
    result.pixel[value / 16][value % 16 * 4] = static_cast<std::uint8_t>(value / 3);
    result.channel[value / 16][value % 16 * 4] = static_cast<std::uint8_t>(value % 3 * wide_block);
  }
  return result;
}();

/// The source of a block of pixels, for all rows: the load address, and for each value the low byte's index among
/// the loaded bytes (red, then green, then blue). Values outside the image have no source byte.
struct pixel_block {
  std::size_t destination;  // first pixel written
  std::size_t source;       // first byte loaded from each plane
  __m512i bytes[vectors];
  __mmask64 inside[vectors];
};

[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi"), gnu::always_inline]] inline pixel_block cut_block(
    int begin, int width, const image_choice& choice) noexcept {
  const int first = choice.right + (choice.flip ? width - wide_block - begin : begin);
  const int source = std::clamp(first, 0, width - wide_block);
  // The shift is limited to a block, because all pixels are outside the image beyond that.
  const __m256i shift = _mm256_set1_epi8(static_cast<char>(std::clamp(first - source, -wide_block, wide_block)));
  const __m256i count = _mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
                                         22, 23, 24, 25, 26, 27, 28, 29, 30, 31);
  const __m256i place =
      _mm256_add_epi8(choice.flip ? _mm256_sub_epi8(_mm256_set1_epi8(wide_block - 1), count) : count, shift);
  const __mmask32 is_inside = _mm256_cmplt_epu8_mask(place, _mm256_set1_epi8(wide_block));
  const __m512i pixel_index = _mm512_castsi256_si512(_mm256_mask_blend_epi8(is_inside, _mm256_set1_epi8(-1), place));
  pixel_block block{static_cast<std::size_t>(begin), static_cast<std::size_t>(source), {}, {}};
  for (std::size_t k = 0; k < vectors; ++k) {
    const __m512i at = _mm512_permutexvar_epi8(_mm512_load_si512(values_of_block.pixel[k].data()), pixel_index);
    constexpr __mmask64 low_bytes = 0x1111'1111'1111'1111;
    block.inside[k] = ~_mm512_movepi8_mask(at) & low_bytes;
    block.bytes[k] = _mm512_add_epi8(at, _mm512_load_si512(values_of_block.channel[k].data()));
  }
  return block;
}

/// Returns the channels' numbers for sixteen values that start at byte `first` of a pixel.
[[gnu::target("avx512f")]] inline __m512 by_channel(const std::array<float, 3>& numbers, std::size_t first) noexcept {
  alignas(64) std::array<float, 16> values;
  for (std::size_t k = 0; k < values.size(); ++k) values[k] = numbers[(first + k) % 3];
  return _mm512_load_ps(values.data());
}

/// Returns true if this machine has the instructions of convert_to_pixels_wide() (AVX-512 with VBMI: Ice Lake, Zen 4
/// and later).
inline bool has_wide_shuffles() noexcept {
  static const bool supported = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                                __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0;
  return supported;
}

/// Converts three planes of bytes to interleaved pixels of floats. The image is at least a block wide.
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vbmi")]] inline void convert_to_pixels_wide(
    const image_conversion& conversion, const image_choice& choice, const std::uint8_t* input, float* output) noexcept {
  const image_shape& shape = conversion.shape;
  const int height = static_cast<int>(shape.height);
  const int width = static_cast<int>(shape.width);
  const std::size_t plane = shape.height * shape.width;
  // A vector of sixteen values begins with any of the three channels, and consecutive vectors cycle through the
  // channels.
  const __m512 scales[] = {by_channel(conversion.scale, 0), by_channel(conversion.scale, 16),
                           by_channel(conversion.scale, 32)};
  const __m512 shifts[] = {by_channel(conversion.shift, 0), by_channel(conversion.shift, 16),
                           by_channel(conversion.shift, 32)};
  const __m512 zero = _mm512_setzero_ps();
  const __m512 outside[] = {_mm512_fmadd_ps(zero, scales[0], shifts[0]), _mm512_fmadd_ps(zero, scales[1], shifts[1]),
                            _mm512_fmadd_ps(zero, scales[2], shifts[2])};
  for (int x = 0; x < width; x += wide_block) {
    // The last block overlaps the previous block.
    const pixel_block block = cut_block(std::min(x, width - wide_block), width, choice);
    float* pixels = output + 3 * block.destination;
    for (int y = 0; y < height; ++y, pixels += 3 * shape.width) {
      const int row = y + choice.down;
      if (row < 0 || row >= height) {
#pragma GCC unroll 6
        for (std::size_t k = 0; k < vectors; ++k) _mm512_storeu_ps(pixels + 16 * k, outside[k % 3]);
        continue;
      }
      const std::uint8_t* const bytes = input + static_cast<std::size_t>(row) * shape.width + block.source;
      const auto load = [&](std::size_t channel) { return reinterpret_cast<const __m256i*>(bytes + channel * plane); };
      const __m512i first_two =
          _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(load(0))), _mm256_loadu_si256(load(1)), 1);
      const __m512i third = _mm512_castsi256_si512(_mm256_loadu_si256(load(2)));
#pragma GCC unroll 6
      for (std::size_t k = 0; k < vectors; ++k) {
        const __m512i values = _mm512_maskz_permutex2var_epi8(block.inside[k], first_two, block.bytes[k], third);
        _mm512_storeu_ps(pixels + 16 * k, _mm512_fmadd_ps(_mm512_cvtepi32_ps(values), scales[k % 3], shifts[k % 3]));
      }
    }
  }
}

inline bool has_fused_vectors() noexcept {
  static const bool supported = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  return supported;
}

#endif

inline void convert_plainly(const image_conversion& conversion, const image_choice& choice, const std::uint8_t* input,
                            float* result) noexcept {
  const image_shape& shape = conversion.shape;
  const bool pixels = shape.layout == image_layout::hwc;
  const std::size_t row_step = pixels ? shape.width * shape.channels : shape.width;
  const std::size_t pixel_step = pixels ? shape.channels : 1;
  const std::size_t channel_step = pixels ? 1 : shape.width * shape.height;
  const int height = static_cast<int>(shape.height);
  const int width = static_cast<int>(shape.width);
  const std::size_t pixel = conversion.output == image_layout::hwc ? shape.channels : 1;
  for (std::size_t channel = 0; channel < shape.channels; ++channel) {
    float* const start =
        result + (conversion.output == image_layout::hwc ? channel : channel * shape.height * shape.width);
    for (int y = 0; y < height; ++y) {
      float* row = start + static_cast<std::size_t>(y) * shape.width * pixel;
      const int source_row = y + choice.down;
      const bool inside = source_row >= 0 && source_row < height;
      const std::uint8_t* const bytes =
          input + static_cast<std::size_t>(inside ? source_row : 0) * row_step + channel * channel_step;
      for (int x = 0; x < width; ++x, row += pixel) {
        const int at = choice.right + (choice.flip ? width - 1 - x : x);
        const std::uint8_t byte =
            inside && at >= 0 && at < width ? bytes[static_cast<std::size_t>(at) * pixel_step] : std::uint8_t{0};
        *row = static_cast<float>(static_cast<double>(byte) * static_cast<double>(conversion.scale[channel]) +
                                  static_cast<double>(conversion.shift[channel]));
      }
    }
  }
}

MUSTER_INLINE void convert_image(const image_conversion& conversion, const image_choice& choice, const std::byte* input,
                                 float* result, [[maybe_unused]] bool portable) noexcept {
  auto* kernel = &convert_plainly;
#ifdef __x86_64__
  const auto& [channels, height, width, layout] = conversion.shape;
  const bool planes_in = layout == image_layout::chw || channels == 1;
  const bool planes_out = conversion.output == image_layout::chw || channels == 1;
  if (!portable && planes_in && width >= vector_pixels && width <= vector_pixels * most_blocks && has_fused_vectors()) {
    if (planes_out)
      kernel = &convert_planes;
    else if (channels == 3)
      kernel = width >= wide_block && has_wide_shuffles() ? &convert_to_pixels_wide : &convert_to_pixels;
  }
#endif
  kernel(conversion, choice, reinterpret_cast<const std::uint8_t*>(input), result);
  erase(conversion, choice, result);
}

MUSTER_INLINE std::optional<image_shape> shape_of_image(const record_schema& input_schema) {
  if (input_schema.form != record_form::fixed || input_schema.fields.size() != 1 ||
      input_schema.fields[0].type != dtype::uint8)
    return std::nullopt;
  const auto& extents = input_schema.fields[0].shape;
  const auto is_channels = [](std::uint64_t extent) { return extent == 1 || extent == 3; };
  image_shape shape;
  if (extents.size() == 2) {
    shape = {1, extents[0], extents[1], image_layout::chw};
  } else if (extents.size() == 3 && is_channels(extents[0])) {
    shape = {extents[0], extents[1], extents[2], image_layout::chw};
  } else if (extents.size() == 3 && is_channels(extents[2])) {
    shape = {extents[2], extents[0], extents[1], image_layout::hwc};
  } else {
    return std::nullopt;
  }
  return shape.height > 32767 || shape.width > 32767 ? std::nullopt : std::optional(shape);
}

MUSTER_INLINE record_schema image_converter::output(const record_schema& input_schema) {
  const auto shape = shape_of_image(input_schema);
  if (!shape) {
    throw configuration_error(
        "cannot read records of " + to_string(input_schema) + " as images (an image has one field of uint8, " +
        "{height, width} with 1 or 3 channels before or after); choose another source or function");
  }
  conversion_.shape = *shape;
  std::vector<std::uint64_t> extents = {shape->height, shape->width, shape->channels};
  if (conversion_.output == image_layout::chw) extents = {shape->channels, shape->height, shape->width};
  return {record_form::fixed,
          {{input_schema.fields[0].name, dtype::float32, std::move(extents)}},
          0,
          input_schema.labels,
          input_schema.classes};
}

}  // namespace detail

MUSTER_INLINE std::uint64_t normalise::version() const noexcept {
  constexpr std::uint64_t current = 1;
  return digest()
      .add(current)
      .add(static_cast<std::uint64_t>(conversion_.output))
      .add(std::as_bytes(std::span(conversion_.scale)))
      .add(std::as_bytes(std::span(conversion_.shift)))
      .value();
}

MUSTER_INLINE void normalise::operator()(std::span<const std::byte> input, std::span<std::byte> result) const noexcept {
  detail::convert_image(conversion_, {}, input.data(), reinterpret_cast<float*>(result.data()));
}

MUSTER_INLINE void image_augmentation::operator()(std::span<const std::byte> input, std::span<std::byte> result,
                                                  random_stream& random) const noexcept {
  detail::image_choice choice;
  if (chance_.pad != 0) {
    const int pad = static_cast<int>(chance_.pad);
    choice.down = static_cast<int>(random.below(2 * std::uint64_t{chance_.pad} + 1)) - pad;
    choice.right = static_cast<int>(random.below(2 * std::uint64_t{chance_.pad} + 1)) - pad;
  }
  if (chance_.flip) choice.flip = random.below(2) != 0;
  if (chance_.cutout != 0) {
    const int side = static_cast<int>(chance_.cutout);
    const auto place = [&](std::size_t extent, int& begin, int& end) {
      const int first = static_cast<int>(random.below(extent)) - side / 2;
      begin = std::max(first, 0);
      end = std::min(first + side, static_cast<int>(extent));
    };
    place(conversion_.shape.height, choice.cutout_top, choice.cutout_bottom);
    place(conversion_.shape.width, choice.cutout_left, choice.cutout_right);
  }
  detail::convert_image(conversion_, choice, input.data(), reinterpret_cast<float*>(result.data()));
}

}}}  // namespace muster::v0::data

#include <muster/core/detail/exact_end.hpp>
