// The inner loops of the layers, compiled for several widths of vectors and chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace nn {

/// Where the numbers of output pixel `p` come from and go to, in elements from the start of an image.
struct pixel_place {
  std::int32_t in;
  std::int32_t out;
};

/// out[pixel][column] (+)= sum over rows r and k of in[pixel.in + r * row_step + k] * weight(r, k, column): a
/// convolution of one image, where the taps of a row and their channels lie one behind another (NHWC) and so are one
/// run of numbers.
template <class T>
struct product_job {
  const T* in;
  const pixel_place* pixels;
  std::size_t pixel_count;
  std::size_t rows;
  std::size_t row_step;
  std::size_t run;
  const T* panels;        ///< as pack_panels() makes them
  std::size_t terms;      ///< that a panel has for each of its columns
  std::size_t first;      ///< of them, that of the first row and k
  std::size_t row_terms;  ///< from one row to the next
  T* out;
  std::size_t columns;
  const T* start;  ///< of the sum of each column, in whole vectors
  bool add;        ///< to what is in `out`, instead of `start`
};

/// to[r][k][column] += sum over the pixels of in[pixel of in + r * row_step + k] * gradient[pixel][column]: the
/// gradient of the weights from some images.
template <class T>
struct weight_job {
  const T* in;
  std::size_t in_image, in_row, in_pixel;  ///< from one image, output row or output pixel to the next
  const T* gradient;
  std::size_t gradient_image, gradient_row, gradient_pixel;
  std::size_t images;
  std::size_t top;            ///< the row of the output that `in` and `gradient` begin with
  std::size_t height, width;  ///< of the output, from there on
  std::size_t in_height, in_width, channels, padding, stride;
  std::size_t rows;
  std::size_t row_step;
  std::size_t run;
  std::size_t columns;
  T* to;
};

/// Rows of pixels; the pixels of a row lie one behind another.
template <class T>
struct image_view {
  T* data;
  std::size_t height, width, channels;
  std::size_t row_step;
};

/// y = scale * x + shift for each channel (null: y = x), and then max(y, 0) if `relu`.
template <class T>
struct pointwise {
  const T* scale = nullptr;
  const T* shift = nullptr;
  bool relu = false;
};

/// Of a pool: kernel x kernel pixels, every `stride` pixels, of an image with `padding` pixels around it that count for
/// nothing.
struct pool_window {
  std::size_t kernel = 2, stride = 2, padding = 0;
};

/// Winograd's F(4 x 4, 3 x 3): 4 x 4 outputs from 6 x 6 inputs, by the values of polynomials at the points 0, a, -a,
/// 1 / a, -1 / a and infinity. By this a, an error is twice that of a direct sum (by the 1 and 2 of Lavin and Gray nine
/// times).
struct winograd_tile {
  static constexpr std::size_t side = 4, lines = side + 2, planes = lines * lines;
  static constexpr double a = 0.70710678118654752440;  // of 2 a = 1 / a
};

/// Of such tiles: a row of them, from or to pixels of `channels` in rows of `row_step`.
struct tile_row {
  std::size_t tiles, channels, row_step;
};

template <class T>
struct kernel_set {
  std::string_view name;  ///< "avx2"
  std::size_t lanes;      ///< elements of a vector
  std::size_t pixels;     ///< that are multiplied at a time
  std::size_t panel;      ///< columns that are packed together; `lanes` where fewer than these are left

  void (*multiply)(const product_job<T>&);
  void (*add_weights)(const weight_job<T>&);

  /// to = f(from), or to += f(from).
  void (*apply)(const image_view<const T>& from, const pointwise<T>& f, const image_view<T>& to, bool add);
  /// Adds to sum[c] what the values add up to.
  void (*add_pixels)(const image_view<const T>& image, T* sum);
  /// Adds to sum[c] and squares[c] what the values minus pivot[c], and their squares, add up to.
  void (*moments)(const image_view<const T>& image, const T* pivot, T* sum, T* squares);
  /// gradient = 0 where f(values) is not above 0, if f.relu. Then, unless `sum` is null, sum[c] += gradient and
  /// products[c] += gradient * (of - pivot[c]).
  void (*mask)(const image_view<const T>& values, const pointwise<T>& f, const image_view<T>& gradient, const T* of,
               const T* pivot, T* sum, T* products);
  /// to = a[c] * gradient + b[c] * values + d[c], or += that.
  void (*combine)(const image_view<const T>& gradient, const image_view<const T>& values, const T* a, const T* b,
                  const T* d, const image_view<T>& to, bool add);

  /// to = the largest of f(from) in each window; taps, dense, says which of a window's numbers it is, row by row, the
  /// first of equal ones, or if f.relu and it is zero, that none is (-1).
  void (*pool)(const image_view<const T>& from, const pointwise<T>& f, const pool_window& window,
               const image_view<T>& to, T* taps);
  /// to[what the taps say] = slope and else 0, or += that.
  void (*unpool)(const image_view<const T>& slope, const T* taps, const pool_window& window, const image_view<T>& to,
                 bool add);

  /// Winograd's transforms: the inputs, or the gradients of the outputs, of each tile to planes; and planes to the
  /// outputs of each tile, of which `rows` rows and `width` pixels in all are there, from `start` on or
  /// added.
  void (*tile_inputs)(const T* in, const tile_row& row, T* tiles, std::size_t plane);
  void (*tile_slopes)(const T* in, const tile_row& row, T* tiles, std::size_t plane);
  void (*tile_outputs)(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                       const T* start, T* out, bool add);
  /// 3 x 3 taps, `tap` from one to the next, of `terms` rows, `step` from one to the next, of numbers to planes of
  /// panels, as pack_panels() makes them; columns that are filled up stay as they are. And sums of planes, which become
  /// zeros, to what is added to taps of `size` numbers.
  void (*tile_weights)(const T* taps, std::size_t tap, std::size_t terms, std::size_t step, std::size_t columns,
                       T* panels, std::size_t plane);
  void (*add_tile_weights)(T* sums, std::size_t plane, std::size_t size, T* taps, std::size_t tap);
};

/// What this processor can do best, or the set of that name. Throws muster::configuration_error if there is none, or
/// this processor cannot run it.
template <class T>
const kernel_set<T>& find_kernels(std::string_view name = {});

/// Those that this processor can run, best first.
std::vector<std::string_view> kernel_names();

}  // namespace nn
