// The kernels of convolution_tiles: products of matrices whose rows are gathered in shared memory.
#pragma once

#include <cstddef>

#include <muster/core/float16.hpp>

#include "matrix_unit.hpp"
#include "tap_geometry.hpp"

namespace nn::device {

/// The sizes of a product that a kernel receives beside its matrices.
struct product_sizes {
  tap_geometry of;
  int channels, columns;  // Of the source; of the result.
  int chunk;              // Number of channels in shared memory at once.
  int rows;               // Largest number of source rows for a block.
};

/// Returns the distance of rows in shared memory, in bytes, chosen so that eight neighbouring rows are in different
/// banks.
template <class A>
NN_BOTH int pitch_of(int elements) {
  return elements * static_cast<int>(sizeof(A)) + 16;
}
/// Returns this distance for matrices from which single floats are read down a column.
template <class A>
NN_BOTH int column_pitch_of(int elements) {
  return elements * static_cast<int>(sizeof(A)) + (sizeof(A) == 4 ? 32 : 16);
}

NN_DEVICE_FUNCTION void clear_16(unsigned char* to) { *reinterpret_cast<vector_16*>(to) = vector_16{0, 0, 0, 0}; }

/// Copies rows [first, end) of a matrix, `width` elements of each from `column` on, to shared memory, followed by a row
/// of zeros.
template <class A>
NN_DEVICE_FUNCTION void fetch_rows(const A* from, int stride, int column, int first, int end, int width, int pitch,
                                   unsigned char* to) {
  const int vectors = width * static_cast<int>(sizeof(A)) / 16;
  const int all = (end - first + 1) * vectors;
  for (int i = static_cast<int>(thread_index()); i < all; i += static_cast<int>(block_threads())) {
    const int row = i / vectors, k = i % vectors;
    unsigned char* const place = to + row * pitch + k * 16;
    if (first + row < end)
      start_copy(place, from + static_cast<std::ptrdiff_t>(first + row) * stride + column +
                            k * 16 / static_cast<int>(sizeof(A)));
    else
      clear_16(place);
  }
}

/// Computes out[pixel][n] = the sum over taps and channels of source[the tap's pixel][c] * weights[n][tap][c]. A warp
/// computes 16 pixels and 8 * Tiles columns.
template <class A, int Split, int Tiles>
NN_KERNEL void gather_product(product_sizes sizes, const A* source, const A* weights, A* out, bool adds) {
  unsigned char* const memory = shared_memory();
  const tap_geometry& of = sizes.of;
  constexpr int bytes = static_cast<int>(sizeof(A));
  const int lane = static_cast<int>(thread_index()) % 32, warp = static_cast<int>(thread_index()) / 32;
  const int pixels_here = static_cast<int>(block_threads()) / 2;  // 16 for each warp.
  const int first_pixel = static_cast<int>(block_x()) * pixels_here;
  const int first_column = static_cast<int>(block_y()) * 8 * Tiles;
  const int taps = of.kernel * of.kernel;
  const int source_pitch = pitch_of<A>(sizes.chunk), weight_pitch = pitch_of<A>(taps * sizes.chunk);
  unsigned char* const weights_here = memory;
  unsigned char* const sources_here = memory + 8 * Tiles * weight_pitch;
  const source_range range = of.range(first_pixel, pixels_here);
  const int zeros = range.end - range.first;

  const tap_row mine = of.row(first_pixel + warp * 16 + lane % 16);
  float sums[Tiles][4] = {};
  for (int channel = 0; channel < sizes.channels; channel += sizes.chunk) {
    synchronise_block();
    fetch_rows(source, sizes.channels, channel, range.first, range.end, sizes.chunk, source_pitch, sources_here);
    const int vectors = sizes.chunk * bytes / 16;
    for (int i = static_cast<int>(thread_index()); i < 8 * Tiles * taps * vectors;
         i += static_cast<int>(block_threads())) {
      const int n = i / (taps * vectors), tap = i / vectors % taps, k = i % vectors;
      unsigned char* const place = weights_here + n * weight_pitch + (tap * sizes.chunk * bytes) + k * 16;
      if (first_column + n < sizes.columns)
        start_copy(place, weights + static_cast<std::ptrdiff_t>((first_column + n) * taps + tap) * sizes.channels +
                              channel + k * 16 / bytes);
      else
        clear_16(place);
    }
    wait_for_copies();
    synchronise_block();
    for (int tap = 0; tap < taps; ++tap) {
      const int down = tap / of.kernel, aside = tap - down * of.kernel;
      const int from = mine.has(down, aside) ? mine.base + of.offset(down, aside) - range.first : zeros;
      const unsigned char* const row = sources_here + from * source_pitch + lane / 16 * 16;
      const unsigned char* const column =
          weights_here + (lane % 8 + lane / 16 * 8) * weight_pitch + tap * sizes.chunk * bytes + lane / 8 % 2 * 16;
      for (int step = 0; step < sizes.chunk * bytes; step += 32) {
        fragment<4> a;
        load_fragment(a, row + step);
        const auto left = prepare<A, Split>(a);
        for (int pair = 0; pair < Tiles / 2; ++pair) {
          fragment<4> b;
          load_fragment(b, column + pair * 16 * weight_pitch + step);
          const auto right = prepare<A, Split>(b);
          multiply_add<A, Split>(sums[2 * pair], left, right, 0);
          multiply_add<A, Split>(sums[2 * pair + 1], left, right, 2);
        }
      }
    }
  }
  for (int half = 0; half < 2; ++half) {
    const int pixel = first_pixel + warp * 16 + lane / 4 + 8 * half;
    if (pixel >= of.pixels) continue;
    for (int tile = 0; tile < Tiles; ++tile) {
      const int column = first_column + tile * 8 + lane % 4 * 2;
      A* const place = out + static_cast<std::ptrdiff_t>(pixel) * sizes.columns + column;
      if (sizes.columns % 2 == 0) {
        if (column >= sizes.columns) continue;
        pack<2> result{{sums[tile][2 * half], sums[tile][2 * half + 1]}};
        if (adds) {
          const pack<2> there = load<2>(place);
          for (int k = 0; k < 2; ++k) result.at[k] += there.at[k];
        }
        store(place, result);
      } else {
        for (int k = 0; k < 2 && column + k < sizes.columns; ++k)
          place[k] = A(sums[tile][2 * half + k] + (adds ? static_cast<float>(place[k]) : 0.0f));
      }
    }
  }
}

constexpr int taps_at_once = 3;
constexpr int row_bytes = 16;  // Bytes of shared memory for a tap_row.

/// Computes partial[block][m][tap][c] = the sum over pixels of a block of slope[pixel][m] * source[the tap's pixel][c],
/// for 16 rows m, three taps and 8 * Tiles channels. The warps of a block share its pixels, 32 pixels each at a time.
template <class A, int Split, int Tiles>
NN_KERNEL void weight_product(product_sizes sizes, const A* source, const A* slope, float* partial) {
  unsigned char* const memory = shared_memory();
  const tap_geometry& of = sizes.of;
  constexpr int bytes = static_cast<int>(sizeof(A)), depth = 32 / bytes;  // Pixels of a step.
  const int lane = static_cast<int>(thread_index()) % 32, warp = static_cast<int>(thread_index()) / 32;
  const int warps = static_cast<int>(block_threads()) / 32, pixels_here = 32 * warps;
  const int taps = of.kernel * of.kernel;
  const int tap_groups = (taps + taps_at_once - 1) / taps_at_once, row_groups = sizes.columns / 16;
  const int job = static_cast<int>(block_y());
  const int first_tap = job % tap_groups * taps_at_once, first_row = job / tap_groups % row_groups * 16;
  const int first_channel = job / tap_groups / row_groups * 8 * Tiles;
  const int source_pitch = column_pitch_of<A>(8 * Tiles), slope_pitch = column_pitch_of<A>(16);
  tap_row* const rows_here = reinterpret_cast<tap_row*>(memory);
  unsigned char* const slopes_here = memory + pixels_here * row_bytes;
  unsigned char* const sources_here = slopes_here + (pixels_here + 1) * slope_pitch;
  int down[taps_at_once], aside[taps_at_once], offset[taps_at_once];
  for (int t = 0; t < taps_at_once; ++t) {
    down[t] = (first_tap + t) / of.kernel;
    aside[t] = first_tap + t - down[t] * of.kernel;
    offset[t] = of.offset(down[t], aside[t]);
  }

  float sums[taps_at_once][Tiles][4] = {};
  for (int first = static_cast<int>(block_x()) * pixels_here; first < of.pixels;
       first += static_cast<int>(grid_x()) * pixels_here) {
    const int end = first + pixels_here < of.pixels ? first + pixels_here : of.pixels;
    const source_range range = of.range(first, end - first);
    const int zeros = range.end - range.first;
    synchronise_block();
    rows_here[thread_index()] = of.row(first + static_cast<int>(thread_index()));
    fetch_rows(slope, sizes.columns, first_row, first, end, 16, slope_pitch, slopes_here);
    fetch_rows(source, sizes.channels, first_channel, range.first, range.end, 8 * Tiles, source_pitch, sources_here);
    wait_for_copies();
    synchronise_block();
    for (int step = 0; step < 32; step += depth) {
      const int base = warp * 32 + step;
      // This lane reads the rows of these pixels: one row for 16-bit elements, which is read whole, or two rows for
      // floats.
      constexpr int reads = sizeof(A) == 2 ? 1 : 2;
      tap_row mine[reads];
      int slope_row[reads];
      for (int r = 0; r < reads; ++r) {
        const int pixel = base + (reads == 1 ? lane % 16 : lane % 4 + 4 * r);
        mine[r] = rows_here[pixel];
        slope_row[r] = first + pixel < end ? pixel : end - first;  // Otherwise the row of zeros.
      }
      fragment<4> a;
      if constexpr (reads == 1) {
        const int pixel = base + lane % 8 + lane / 16 * 8;
        const int row = first + pixel < end ? pixel : end - first;
        load_transposed(a, slopes_here + row * slope_pitch + lane / 8 % 2 * 16);
      } else {
        for (int r = 0; r < 2; ++r) {
          const float* const row = reinterpret_cast<const float*>(slopes_here + slope_row[r] * slope_pitch);
          a.set(2 * r, row[lane / 4]);
          a.set(2 * r + 1, row[lane / 4 + 8]);
        }
      }
      const auto left = prepare<A, Split>(a);
      for (int t = 0; t < taps_at_once && first_tap + t < taps; ++t) {
        const unsigned char* rows[reads];
        for (int r = 0; r < reads; ++r) {
          const int from = mine[r].has(down[t], aside[t]) ? mine[r].base + offset[t] - range.first : zeros;
          rows[r] = sources_here + from * source_pitch;
        }
        for (int pair = 0; pair < Tiles / 2; ++pair) {
          fragment<4> b;
          if constexpr (reads == 1) {
            load_transposed(b, rows[0] + pair * 32 + lane / 16 * 16);
          } else {
            for (int half = 0; half < 2; ++half) {
              for (int r = 0; r < 2; ++r)
                b.set(2 * half + r, reinterpret_cast<const float*>(rows[r])[pair * 16 + half * 8 + lane / 4]);
            }
          }
          const auto right = prepare<A, Split>(b);
          multiply_add<A, Split>(sums[t][2 * pair], left, right, 0);
          multiply_add<A, Split>(sums[t][2 * pair + 1], left, right, 2);
        }
      }
    }
  }

  // Each warp stores its sums, [16][taps_at_once][8 * Tiles], and the block adds them.
  constexpr int size = 16 * taps_at_once * 8 * Tiles;
  float* const all = reinterpret_cast<float*>(memory);
  synchronise_block();
  for (int t = 0; t < taps_at_once; ++t) {
    for (int tile = 0; tile < Tiles; ++tile) {
      for (int k = 0; k < 4; ++k) {
        all[warp * size + ((lane / 4 + k / 2 * 8) * taps_at_once + t) * 8 * Tiles + tile * 8 + lane % 4 * 2 + k % 2] =
            sums[t][tile][k];
      }
    }
  }
  synchronise_block();
  for (int i = static_cast<int>(thread_index()); i < size; i += static_cast<int>(block_threads())) {
    const int row = i / (taps_at_once * 8 * Tiles), t = i / (8 * Tiles) % taps_at_once, c = i % (8 * Tiles);
    if (first_tap + t >= taps) continue;
    float sum = 0;
    for (int other = 0; other < warps; ++other) sum += all[other * size + i];
    partial[((static_cast<std::ptrdiff_t>(block_x()) * sizes.columns + first_row + row) * taps + first_tap + t) *
                sizes.channels +
            first_channel + c] = sum;
  }
}

/// Computes out[i] = the sum of partial[r][i]. A block has 64 columns and 4 threads for each column.
template <class A>
NN_KERNEL void sum_partials(const float* partial, int rows, int columns, A* out) {
  float* const sums = reinterpret_cast<float*>(shared_memory());
  const int column = static_cast<int>(block_x()) * 64 + static_cast<int>(thread_index()) % 64;
  const int adder = static_cast<int>(thread_index()) / 64;
  float sum = 0;
  if (column < columns) {
    NN_UNROLL_8
    for (int row = adder; row < rows; row += 4) sum += partial[static_cast<std::ptrdiff_t>(row) * columns + column];
  }
  sums[thread_index()] = sum;
  synchronise_block();
  if (adder != 0 || column >= columns) return;
  for (int other = 1; other < 4; ++other) sum += sums[other * 64 + thread_index()];
  out[column] = A(sum);
}

}  // namespace nn::device
