// Code that each kernels_*.cpp compiles for its own vector width.
#pragma once

#include "kernels_pointwise.hpp"
#include "kernels_pool.hpp"
#include "kernels_vector.hpp"
#include "kernels_winograd.hpp"

namespace nn { namespace {

/// The kernels for vectors of Width bytes. Pixels x Blocks vectors are held in registers.
template <class T, std::size_t Width, std::size_t Pixels, std::size_t Blocks>
struct kernels : vectors<T, Width> {
  using typename vectors<T, Width>::vector;
  using vectors<T, Width>::lanes;
  using vectors<T, Width>::load;
  using vectors<T, Width>::store;
  using vectors<T, Width>::broadcast;
  static constexpr std::size_t panel = Blocks * lanes;

  /// Computes one tile: Pixels pixels times B vectors of columns that are packed together.
  template <bool Add, std::size_t B>
  [[gnu::always_inline]] static inline void tile(const product_job<T>& job, const pixel_place* places, const T* weights,
                                                 std::size_t column) {
    const T* in[Pixels];
    NN_UNROLL for (std::size_t p = 0; p < Pixels; ++p) in[p] = job.in + places[p].in;
    T* const out = job.out + column;
    vector sums[Pixels][B], start[B];
    if constexpr (!Add) {
      NN_UNROLL for (std::size_t b = 0; b < B; ++b) start[b] = load(job.start + column + b * lanes);
    }
    NN_UNROLL for (std::size_t p = 0; p < Pixels; ++p) {
      NN_UNROLL for (std::size_t b = 0; b < B; ++b) {
        if constexpr (Add) {
          sums[p][b] = load(out + places[p].out + b * lanes);
        } else {
          sums[p][b] = start[b];
        }
      }
    }
    for (std::size_t r = 0; r < job.rows; ++r) {
      const std::size_t run = job.run;
      for (std::size_t k = 0; k < run; ++k) {
        vector weight[B];
        NN_UNROLL for (std::size_t b = 0; b < B; ++b) weight[b] = load(weights + b * lanes);
        NN_UNROLL for (std::size_t p = 0; p < Pixels; ++p) {
          const vector value = broadcast(in[p][k]);
          NN_UNROLL for (std::size_t b = 0; b < B; ++b) sums[p][b] += value * weight[b];
        }
        weights += B * lanes;
      }
      NN_UNROLL for (std::size_t p = 0; p < Pixels; ++p) in[p] += job.row_step;
      weights += (job.row_terms - run) * B * lanes;
    }
    NN_UNROLL for (std::size_t p = 0; p < Pixels; ++p) {
      NN_UNROLL for (std::size_t b = 0; b < B; ++b) store(out + places[p].out + b * lanes, sums[p][b]);
    }
  }

  /// Computes a tile whose last vector is not full.
  static void tile_of_few(const product_job<T>& job, const pixel_place* places, const T* weights, std::size_t column) {
    T whole_vectors[Pixels * lanes];
    pixel_place here[Pixels];
    for (std::size_t p = 0; p < Pixels; ++p) here[p] = {places[p].in, static_cast<std::int32_t>(p * lanes)};
    product_job<T> local = job;
    local.out = whole_vectors;
    local.start = job.start + column;
    tile<false, 1>(local, here, weights, 0);
    for (std::size_t p = 0; p < Pixels; ++p) {
      // Skips a pixel that was repeated to fill the tile.
      if (p > 0 && places[p].out == places[p - 1].out) continue;
      T* const out = job.out + places[p].out;
      for (std::size_t c = column; c < job.columns; ++c) {
        out[c] = (job.add ? out[c] : T{0}) + whole_vectors[p * lanes + c - column];
      }
    }
  }

  /// Computes all pixels of B vectors of columns, from `column` on.
  template <std::size_t B>
  static void multiply_columns(const product_job<T>& job, const T* weights, std::size_t column) {
    const bool whole = column + B * lanes <= job.columns;
    pixel_place filled[Pixels];
    for (std::size_t first = 0; first < job.pixel_count; first += Pixels) {
      const pixel_place* places = job.pixels + first;
      if (first + Pixels > job.pixel_count) {
        for (std::size_t p = 0; p < Pixels; ++p) {
          // Repeats the last pixel to fill the tile.
          filled[p] = job.pixels[first + p < job.pixel_count ? first + p : job.pixel_count - 1];
        }
        places = filled;
      }
      if (!whole) {
        tile_of_few(job, places, weights, column);
      } else if (job.add) {
        tile<true, B>(job, places, weights, column);
      } else {
        tile<false, B>(job, places, weights, column);
      }
    }
  }

  static void multiply(const product_job<T>& job) {
    std::size_t column = 0;
    for (; column + panel <= job.columns; column += panel) {
      multiply_columns<Blocks>(job, job.panels + column * job.terms + job.first * panel, column);
    }
    for (; column < job.columns; column += lanes) {
      multiply_columns<1>(job, job.panels + column * job.terms + job.first * lanes, column);
    }
  }

  /// Computes Terms x B vectors of the weight gradient, from some rows of the output or some images.
  template <std::size_t Terms, std::size_t B>
  [[gnu::always_inline]] static inline void weight_tile(const weight_job<T>& job, const T* from, const T* slope,
                                                        T* to) {
    vector sums[Terms][B];
    NN_UNROLL for (std::size_t k = 0; k < Terms; ++k) {
      NN_UNROLL for (std::size_t b = 0; b < B; ++b) sums[k][b] = load(to + k * job.columns + b * lanes);
    }
    for (std::size_t image = 0; image < job.images; ++image, from += job.in_image, slope += job.gradient_image) {
      const T* in = from;
      const T* gradient = slope;
      for (std::size_t y = 0; y < job.height; ++y, in += job.in_row, gradient += job.gradient_row) {
        const T* x = in;
        const T* g = gradient;
        for (std::size_t n = 0; n < job.width; ++n, x += job.in_pixel, g += job.gradient_pixel) {
          vector slopes[B];
          NN_UNROLL for (std::size_t b = 0; b < B; ++b) slopes[b] = load(g + b * lanes);
          NN_UNROLL for (std::size_t k = 0; k < Terms; ++k) {
            const vector value = broadcast(x[k]);
            NN_UNROLL for (std::size_t b = 0; b < B; ++b) sums[k][b] += value * slopes[b];
          }
        }
      }
    }
    NN_UNROLL for (std::size_t k = 0; k < Terms; ++k) {
      NN_UNROLL for (std::size_t b = 0; b < B; ++b) store(to + k * job.columns + b * lanes, sums[k][b]);
    }
  }

  /// Computes some terms of a run for all columns. The input that they read stays in the first-level cache.
  template <std::size_t Terms>
  static void weight_terms(const weight_job<T>& job, const T* in, T* to) {
    std::size_t column = 0;
    for (; column + panel <= job.columns; column += panel) {
      weight_tile<Terms, Blocks>(job, in, job.gradient + column, to + column);
    }
    for (; column + lanes <= job.columns; column += lanes) {
      weight_tile<Terms, 1>(job, in, job.gradient + column, to + column);
    }
    for (; column < job.columns; ++column) {
      for (std::size_t k = 0; k < Terms; ++k) {
        T sum = 0;
        for (std::size_t n = 0; n < job.images; ++n) {
          for (std::size_t y = 0; y < job.height; ++y) {
            const T* const x = in + k + n * job.in_image + y * job.in_row;
            const T* const g = job.gradient + column + n * job.gradient_image + y * job.gradient_row;
            for (std::size_t p = 0; p < job.width; ++p) sum += x[p * job.in_pixel] * g[p * job.gradient_pixel];
          }
        }
        to[k * job.columns + column] += sum;
      }
    }
  }

  struct span {
    std::size_t begin, end;
  };
  /// Returns the lines of the output for which at least one tap from `first` to `last` is inside the image.
  static span within(const weight_job<T>& job, std::size_t first, std::size_t last, std::size_t side,
                     std::size_t lines) {
    const std::size_t beyond = job.padding + side;
    const std::size_t begin = last < job.padding ? (job.padding - last + job.stride - 1) / job.stride : 0;
    const std::size_t end = first < beyond ? (beyond - first + job.stride - 1) / job.stride : 0;
    return {begin, end < lines ? end : lines};
  }

  /// Computes terms k to k + Terms in a row of taps.
  template <std::size_t Terms>
  [[gnu::always_inline]] static inline void weight_tap(const weight_job<T>& row, std::size_t k, T* to) {
    const auto columns = within(row, k / row.channels, (k + Terms - 1) / row.channels, row.in_width, row.width);
    if (columns.begin >= columns.end) return;
    weight_job<T> part = row;
    part.width = columns.end - columns.begin;
    part.gradient = row.gradient + columns.begin * row.gradient_pixel;
    weight_terms<Terms>(part, row.in + columns.begin * row.in_pixel + k, to + k * row.columns);
  }

  static void weight_block(const weight_job<T>& job) {
    for (std::size_t r = 0; r < job.rows; ++r) {
      const auto rows = within(job, r, r, job.in_height, job.top + job.height);
      const std::size_t first = rows.begin > job.top ? rows.begin : job.top;
      if (first >= rows.end) continue;
      weight_job<T> part = job;
      part.height = rows.end - first;
      part.in = job.in + (first - job.top) * job.in_row + r * job.row_step;
      part.gradient = job.gradient + (first - job.top) * job.gradient_row;
      T* const to = job.to + r * job.run * job.columns;
      std::size_t k = 0;
      for (; k + Pixels <= job.run; k += Pixels) weight_tap<Pixels>(part, k, to);
      // Four sums hide the latency of a dependent addition.
      for (; k < job.run && (job.run - k) % 4 == 0; k += 4) weight_tap<4>(part, k, to);
      for (; k + 3 <= job.run; k += 3) weight_tap<3>(part, k, to);
      for (; k < job.run; ++k) weight_tap<1>(part, k, to);
    }
  }

  static void add_weights(const weight_job<T>& job) {
    // The block size is chosen so that the input that is read stays in the first-level cache. It is at least 64 pixels;
    // otherwise loading and storing the sums would cost too much.
    constexpr std::size_t cache = 14 * 1024, least = 64;
    const std::size_t row_bytes = job.width * (job.gradient_pixel + job.in_pixel) * sizeof(T);
    const auto ceiling = [](std::size_t a, std::size_t b) { return (a + b - 1) / b; };
    std::size_t rows = cache / row_bytes;
    if (rows * job.width < least) rows = ceiling(least, job.width);
    weight_job<T> part = job;
    if (rows >= job.height) {
      const std::size_t images = rows / job.height;
      for (std::size_t n = 0; n < job.images; n += images) {
        part.images = job.images - n < images ? job.images - n : images;
        part.in = job.in + n * job.in_image;
        part.gradient = job.gradient + n * job.gradient_image;
        weight_block(part);
      }
      return;
    }
    part.images = 1;
    for (std::size_t n = 0; n < job.images; ++n) {
      for (std::size_t y = 0; y < job.height; y += rows) {
        part.top = y;
        part.height = job.height - y < rows ? job.height - y : rows;
        part.in = job.in + n * job.in_image + y * job.in_row;
        part.gradient = job.gradient + n * job.gradient_image + y * job.gradient_row;
        weight_block(part);
      }
    }
  }

  static constexpr kernel_set<T> table(std::string_view name) {
    using pointwise = pointwise_kernels<T, Width>;
    using pools = pool_kernels<T, Width>;
    using winograd = winograd_kernels<T, Width, panel>;
    return {.name = name,
            .lanes = lanes,
            .pixels = Pixels,
            .panel = panel,
            .multiply = &multiply,
            .add_weights = &add_weights,
            .apply = &pointwise::apply,
            .add_pixels = &pointwise::add_pixels,
            .moments = &pointwise::moments,
            .mask = &pointwise::mask,
            .combine = &pointwise::combine,
            .pool = &pools::pool,
            .unpool = &pools::unpool,
            .tile_inputs = &winograd::inputs,
            .tile_slopes = &winograd::slopes,
            .tile_outputs = &winograd::outputs,
            .tile_weights = &winograd::weights,
            .add_tile_weights = &winograd::weight_sums};
  }
};

}  // namespace
}  // namespace nn

#undef NN_UNROLL
