// Winograd's transforms for kernels of 3 x 3 and tiles of 2 x 2 outputs: sums and differences alone.
#pragma once

#include "kernels_vector.hpp"

namespace nn {
namespace {

template <class T, std::size_t Width>
struct winograd_kernels {
  template <class Chunk>
  [[gnu::always_inline]] static inline void over_vectors(std::size_t channels, const Chunk& chunk) {
    constexpr std::size_t lanes = vectors<T, Width>::lanes;
    std::size_t c = 0;
    for (; c + lanes <= channels; c += lanes)
      chunk.template operator()<typename vectors<T, Width>::template some<1>>(c);
    for (; c < channels; ++c) chunk.template operator()<typename vectors<T, Width>::one>(c);
  }

  /// (B^T d B) of each tile of 4 x 4 inputs.
  static void inputs(const T* in, const tile_row& row, T* tiles, std::size_t plane) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            typename V::value half[4][4];
            NN_UNROLL for (std::size_t x = 0; x < 4; ++x) {
              const T* const d = in + (2 * n + x) * row.channels + c;
              const auto d0 = V::get(d), d1 = V::get(d + row.row_step), d2 = V::get(d + 2 * row.row_step),
                         d3 = V::get(d + 3 * row.row_step);
              half[0][x] = d0 - d2;
              half[1][x] = d1 + d2;
              half[2][x] = d2 - d1;
              half[3][x] = d1 - d3;
            }
            T* const to = tiles + n * row.channels + c;
            NN_UNROLL for (std::size_t y = 0; y < 4; ++y) {
              V::put(to + (4 * y) * plane, half[y][0] - half[y][2]);
              V::put(to + (4 * y + 1) * plane, half[y][1] + half[y][2]);
              V::put(to + (4 * y + 2) * plane, half[y][2] - half[y][1]);
              V::put(to + (4 * y + 3) * plane, half[y][1] - half[y][3]);
            }
          });
    }
  }

  /// (A g A^T) of each tile of 2 x 2 gradients.
  static void slopes(const T* in, const tile_row& row, T* tiles, std::size_t plane) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            typename V::value half[4][2];
            NN_UNROLL for (std::size_t x = 0; x < 2; ++x) {
              const T* const g = in + (2 * n + x) * row.channels + c;
              const auto g0 = V::get(g), g1 = V::get(g + row.row_step);
              half[0][x] = g0;
              half[1][x] = g0 + g1;
              half[2][x] = g0 - g1;
              half[3][x] = -g1;
            }
            T* const to = tiles + n * row.channels + c;
            NN_UNROLL for (std::size_t y = 0; y < 4; ++y) {
              V::put(to + (4 * y) * plane, half[y][0]);
              V::put(to + (4 * y + 1) * plane, half[y][0] + half[y][1]);
              V::put(to + (4 * y + 2) * plane, half[y][0] - half[y][1]);
              V::put(to + (4 * y + 3) * plane, -half[y][1]);
            }
          });
    }
  }

  /// (A^T m A) of each tile, 2 x 2 outputs, `rows` of them and `width` pixels in all.
  template <bool Add>
  static void outputs_as(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                         const T* start, T* out) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            const T* const from = tiles + n * row.channels + c;
            typename V::value half[2][4];
            NN_UNROLL for (std::size_t x = 0; x < 4; ++x) {
              const auto m0 = V::get(from + x * plane), m1 = V::get(from + (4 + x) * plane),
                         m2 = V::get(from + (8 + x) * plane), m3 = V::get(from + (12 + x) * plane);
              half[0][x] = m0 + (m1 + m2);
              half[1][x] = (m1 - m2) - m3;
            }
            const auto first = V::get(start + c);
            T* const to = out + 2 * n * row.channels + c;
            const auto put = [&](T * at, typename V::value made) __attribute__((always_inline)) {
              if constexpr (Add) {
                V::put(at, V::get(at) + made);
              } else {
                V::put(at, first + made);
              }
            };
            const bool both = 2 * n + 1 < width;
            NN_UNROLL for (std::size_t y = 0; y < 2; ++y) {
              if (y >= rows) break;
              put(to + y * row.row_step, half[y][0] + (half[y][1] + half[y][2]));
              if (both) put(to + y * row.row_step + row.channels, (half[y][1] - half[y][2]) - half[y][3]);
            }
          });
    }
  }

  static void outputs(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                      const T* start, T* out, bool add) {
    add ? outputs_as<true>(tiles, plane, row, rows, width, start, out)
        : outputs_as<false>(tiles, plane, row, rows, width, start, out);
  }
};

}  // namespace
}  // namespace nn
