// Winograd's transforms for kernels of 3 x 3 and tiles of 4 x 4 outputs, by the points of winograd_tile.
#pragma once

#include "kernels_vector.hpp"

namespace nn { namespace {

/// Winograd's transforms for panels of Panel columns, the columns that are packed together.
template <class T, std::size_t Width, std::size_t Panel>
struct winograd_kernels {
  template <class Chunk>
  [[gnu::always_inline]] static inline void over_vectors(std::size_t channels, const Chunk& chunk) {
    constexpr std::size_t lanes = vectors<T, Width>::lanes;
    std::size_t c = 0;
    for (; c + lanes <= channels; c += lanes)
      chunk.template operator()<typename vectors<T, Width>::template some<1>>(c);
    for (; c < channels; ++c) chunk.template operator()<typename vectors<T, Width>::scalar>(c);
  }

  static constexpr std::size_t side = winograd_tile::side, lines = winograd_tile::lines;
  static constexpr T a = T(winograd_tile::a), half = T(0.5), third = T(1.0 / 3);
  template <class V>
  using line = typename V::value[lines];

  /// Computes the values at two opposite points, a and -a or their inverses, from the terms of even and of odd powers.
  template <class V, class Value = typename V::value>
  [[gnu::always_inline]] static inline void at_points(Value zero, Value even, Value odd, Value inverse_even,
                                                      Value inverse_odd, Value infinity, line<V>& to) {
    to[0] = zero;
    to[1] = even + odd;
    to[2] = even - odd;
    to[3] = inverse_even + inverse_odd;
    to[4] = inverse_even - inverse_odd;
    to[5] = infinity;
  }

  /// Multiplies six numbers by B^T.
  template <class V>
  [[gnu::always_inline]] static inline void spread_input(const line<V>& d, line<V>& to) {
    at_points<V>(d[0] - T(2.5) * d[2] + d[4], d[4] - 2 * d[2], a * (d[3] - 2 * d[1]), d[4] - half * d[2],
                 2 * a * (d[3] - half * d[1]), d[1] - T(2.5) * d[3] + d[5], to);
  }

  /// Multiplies three taps by G.
  template <class V>
  [[gnu::always_inline]] static inline void spread_taps(const line<V>& w, line<V>& to) {
    const auto odd = a * w[1];
    at_points<V>(w[0], w[0] + half * w[2], odd, half * w[0] + w[2], odd, w[2], to);
  }

  /// Multiplies six numbers by G^T.
  template <class V>
  [[gnu::always_inline]] static inline void gather_taps(const line<V>& m, line<V>& to) {
    const auto even = m[1] + m[2], inverse_even = m[3] + m[4];
    to[0] = m[0] + even + half * inverse_even;
    to[1] = a * ((m[1] - m[2]) + (m[3] - m[4]));
    to[2] = m[5] + half * even + inverse_even;
  }

  /// Multiplies four numbers by A.
  template <class V>
  [[gnu::always_inline]] static inline void spread_slope(const line<V>& g, line<V>& to) {
    at_points<V>(g[0], -2 * third * g[0] - third * g[2], -2 * third * a * g[1] - third * a * g[3],
                 third * g[0] + 2 * third * g[2], 2 * third * a * g[1] + 4 * third * a * g[3], g[3], to);
  }

  /// Multiplies six numbers by A^T.
  template <class V>
  [[gnu::always_inline]] static inline void gather_output(const line<V>& m, line<V>& to) {
    const auto even = third * (m[1] + m[2]), odd = third * a * (m[1] - m[2]);
    const auto inverse_even = third * (m[3] + m[4]), inverse_odd = third * a * (m[3] - m[4]);
    to[0] = m[0] - 2 * even + inverse_even;
    to[1] = 2 * (inverse_odd - odd);
    to[2] = 2 * inverse_even - even;
    to[3] = m[5] - odd + 4 * inverse_odd;
  }

  /// Transforms Size x Size numbers, with distances `x_step` and `y_step`, to planes.
  template <std::size_t Size, auto Spread, class V>
  [[gnu::always_inline]] static inline void spread(const T* from, std::size_t x_step, std::size_t y_step, T* to,
                                                   std::size_t plane) {
    line<V> rows[lines];
    NN_UNROLL for (std::size_t x = 0; x < Size; ++x) {
      line<V> column;
      line<V> transformed;
      NN_UNROLL for (std::size_t y = 0; y < Size; ++y) column[y] = V::get(from + y * y_step + x * x_step);
      Spread(column, transformed);
      NN_UNROLL for (std::size_t y = 0; y < lines; ++y) rows[y][x] = transformed[y];
    }
    NN_UNROLL for (std::size_t y = 0; y < lines; ++y) {
      line<V> transformed;
      Spread(rows[y], transformed);
      NN_UNROLL for (std::size_t x = 0; x < lines; ++x) V::put(to + (lines * y + x) * plane, transformed[x]);
    }
  }

  /// Transforms planes to Size rows of numbers.
  template <std::size_t Size, auto Gather, class V>
  [[gnu::always_inline]] static inline void gather(const T* from, std::size_t plane, line<V> (&rows)[Size]) {
    line<V> half_rows[Size];
    NN_UNROLL for (std::size_t x = 0; x < lines; ++x) {
      line<V> column;
      line<V> gathered;
      NN_UNROLL for (std::size_t y = 0; y < lines; ++y) column[y] = V::get(from + (lines * y + x) * plane);
      Gather(column, gathered);
      NN_UNROLL for (std::size_t y = 0; y < Size; ++y) half_rows[y][x] = gathered[y];
    }
    NN_UNROLL for (std::size_t y = 0; y < Size; ++y) Gather(half_rows[y], rows[y]);
  }

  static void inputs(const T* in, const tile_row& row, T* tiles, std::size_t plane) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            spread<lines, &winograd_kernels::spread_input<V>, V>(in + side * n * row.channels + c, row.channels,
                                                                 row.row_step, tiles + n * row.channels + c, plane);
          });
    }
  }

  static void slopes(const T* in, const tile_row& row, T* tiles, std::size_t plane) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            spread<side, &winograd_kernels::spread_slope<V>, V>(in + side * n * row.channels + c, row.channels,
                                                                row.row_step, tiles + n * row.channels + c, plane);
          });
    }
  }

  /// Writes or adds `side` x `side` outputs for each tile, of which `rows` rows and `width` pixels in total exist.
  template <bool Add>
  static void outputs_as(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                         const T* start, T* out) {
    for (std::size_t n = 0; n < row.tiles; ++n) {
      const std::size_t pixels = width - side * n < side ? width - side * n : side;
      over_vectors(
          row.channels, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
            line<V> gathered[side];
            gather<side, &winograd_kernels::gather_output<V>, V>(tiles + n * row.channels + c, plane, gathered);
            const auto first = V::get(start + c);
            NN_UNROLL for (std::size_t y = 0; y < side; ++y) {
              if (y >= rows) break;
              T* const to = out + y * row.row_step + side * n * row.channels + c;
              NN_UNROLL for (std::size_t x = 0; x < side; ++x) {
                if (x >= pixels) break;
                T* const at = to + x * row.channels;
                V::put(at, (Add ? V::get(at) : first) + gathered[y][x]);
              }
            }
          });
    }
  }

  static void outputs(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                      const T* start, T* out, bool add) {
    add ? outputs_as<true>(tiles, plane, row, rows, width, start, out)
        : outputs_as<false>(tiles, plane, row, rows, width, start, out);
  }

  static void weights(const T* taps, std::size_t tap, std::size_t terms, std::size_t step, std::size_t columns,
                      T* panels, std::size_t plane) {
    constexpr std::size_t lanes = vectors<T, Width>::lanes;
    for (std::size_t column = 0, width = 0; column < columns; column += width) {
      width = columns - column < Panel ? lanes : Panel;
      const std::size_t there = columns - column < width ? columns - column : width;
      for (std::size_t t = 0; t < terms; ++t) {
        over_vectors(
            there, [&]<class V>(std::size_t c) __attribute__((always_inline)) {
              spread<3, &winograd_kernels::spread_taps<V>, V>(taps + t * step + column + c, tap, 3 * tap,
                                                              panels + column * terms + t * width + c, plane);
            });
      }
    }
  }

  static void weight_sums(T* sums, std::size_t plane, std::size_t size, T* taps, std::size_t tap) {
    over_vectors(
        size, [&]<class V>(std::size_t i) __attribute__((always_inline)) {
          line<V> gathered[3];
          gather<3, &winograd_kernels::gather_taps<V>, V>(sums + i, plane, gathered);
          for (std::size_t m = 0; m < lines * lines; ++m) V::put(sums + m * plane + i, typename V::value{});
          NN_UNROLL for (std::size_t y = 0; y < 3; ++y) {
            NN_UNROLL for (std::size_t x = 0; x < 3; ++x) {
              T* const at = taps + (3 * y + x) * tap + i;
              V::put(at, V::get(at) + gathered[y][x]);
            }
          }
        });
  }
};

}  // namespace
}  // namespace nn
