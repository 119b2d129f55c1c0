// The inner loops of the layers, compiled for several vector widths and chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace nn {

/// The input and output offsets of output pixel `p`, in elements from the start of an image.
struct pixel_place {
  std::int32_t in;
  std::int32_t out;
};

/// A convolution over one image: out[pixel][column] (+)= sum over rows r and k of in[pixel.in + r * row_step + k] *
/// weight(r, k, column). The taps of a row and their channels are adjacent in memory (NHWC), so that each row is one
/// run of numbers.
template <class T>
struct product_job {
  const T* in;
  const pixel_place* pixels;
  std::size_t pixel_count;
  std::size_t rows;
  std::size_t row_step;
  std::size_t run;
  const T* panels;        ///< Weights as packed by pack_panels().
  std::size_t terms;      ///< Number of terms that a panel has for each column.
  std::size_t first;      ///< Index of the term for the first row and k = 0.
  std::size_t row_terms;  ///< Distance in terms from one row to the next.
  T* out;
  std::size_t columns;
  const T* start;  ///< Initial value of each column's sum, padded to whole vectors.
  bool add;        ///< True to start the sums with the numbers in `out` instead of `start`.
};

/// The gradient of the weights from some images: to[r][k][column] += sum over the pixels of in[pixel.in + r * row_step
/// + k] * gradient[pixel][column].
template <class T>
struct weight_job {
  const T* in;
  std::size_t in_image, in_row, in_pixel;  ///< Distance from one image, output row or output pixel to the next.
  const T* gradient;
  std::size_t gradient_image, gradient_row, gradient_pixel;
  std::size_t images;
  std::size_t top;            ///< Output row at which `in` and `gradient` begin.
  std::size_t height, width;  ///< Size of the output from this row on.
  std::size_t in_height, in_width, channels, padding, stride;
  std::size_t rows;
  std::size_t row_step;
  std::size_t run;
  std::size_t columns;
  T* to;
};

/// A view of an image as rows of pixels. The pixels of a row are adjacent in memory.
template <class T>
struct image_view {
  T* data;
  std::size_t height, width, channels;
  std::size_t row_step;
};

/// A pointwise function: y = scale * x + shift for each channel (null: y = x), and then max(y, 0) if `relu`.
template <class T>
struct pointwise {
  const T* scale = nullptr;
  const T* shift = nullptr;
  bool relu = false;
};

/// The windows of a pool: kernel x kernel pixels, every `stride` pixels, in an image with `padding` ignored pixels
/// around it.
struct pool_window {
  std::size_t kernel = 2, stride = 2, padding = 0;
};

/// Constants of Winograd's F(4 x 4, 3 x 3): 4 x 4 outputs from 6 x 6 inputs, by the values of polynomials at the points
/// 0, a, -a, 1 / a, -1 / a and infinity. With this a, the error is twice the error of a direct sum (with the 1 and 2 of
/// Lavin and Gray it is nine times as large).
struct winograd_tile {
  static constexpr std::size_t side = 4, lines = side + 2, planes = lines * lines;
  static constexpr double a = 0.70710678118654752440;  // Solution of 2 a = 1 / a.
};

/// A row of Winograd tiles, read from or written to pixels of `channels` channels in rows of `row_step` elements.
struct tile_row {
  std::size_t tiles, channels, row_step;
};

template <class T>
struct kernel_set {
  std::string_view name;  ///< Name, for example "avx2".
  std::size_t lanes;      ///< Number of elements in a vector.
  std::size_t pixels;     ///< Number of pixels that are multiplied at a time.
  /// Number of columns that are packed together; `lanes` where fewer columns than `panel` remain.
  std::size_t panel;

  void (*multiply)(const product_job<T>&);
  void (*add_weights)(const weight_job<T>&);

  /// Computes to = f(from), or to += f(from).
  void (*apply)(const image_view<const T>& from, const pointwise<T>& f, const image_view<T>& to, bool add);
  /// Adds the sum of channel c over all pixels to sum[c].
  void (*add_pixels)(const image_view<const T>& image, T* sum);
  /// Adds, for each channel c, the sum of the values minus pivot[c] to sum[c], and the sum of their squares to
  /// squares[c].
  void (*moments)(const image_view<const T>& image, const T* pivot, T* sum, T* squares);
  /// Sets gradient = 0 where f(values) is not above 0, if f.relu. Then, unless `sum` is null, adds the gradient to
  /// sum[c] and gradient * (of - pivot[c]) to products[c].
  void (*mask)(const image_view<const T>& values, const pointwise<T>& f, const image_view<T>& gradient, const T* of,
               const T* pivot, T* sum, T* products);
  /// Computes to = a[c] * gradient + b[c] * values + d[c], or adds this to `to`.
  void (*combine)(const image_view<const T>& gradient, const image_view<const T>& values, const T* a, const T* b,
                  const T* d, const image_view<T>& to, bool add);

  /// Computes the maximum of f(from) in each window. `taps`, dense, receives the index of the maximum in its window,
  /// row by row, and the first index among equal numbers. If f.relu and the maximum is zero, it receives -1.
  void (*pool)(const image_view<const T>& from, const pointwise<T>& f, const pool_window& window,
               const image_view<T>& to, T* taps);
  /// Writes each slope to the element that `taps` selects and 0 to the others, or adds instead.
  void (*unpool)(const image_view<const T>& slope, const T* taps, const pool_window& window, const image_view<T>& to,
                 bool add);

  /// Winograd's transforms. Each tile's inputs, or gradients of outputs, are transformed to planes. Planes are
  /// transformed to each tile's outputs, of which `rows` rows and `width` pixels in total exist. The outputs start
  /// at `start` or are added.
  void (*tile_inputs)(const T* in, const tile_row& row, T* tiles, std::size_t plane);
  void (*tile_slopes)(const T* in, const tile_row& row, T* tiles, std::size_t plane);
  void (*tile_outputs)(const T* tiles, std::size_t plane, const tile_row& row, std::size_t rows, std::size_t width,
                       const T* start, T* out, bool add);
  /// Transforms 3 x 3 taps, `tap` elements apart, of `terms` rows, `step` elements apart, to planes of panels as packed
  /// by pack_panels(). Padding columns are left unchanged. The other function adds sums of planes to taps of `size`
  /// numbers and sets the planes to zero.
  void (*tile_weights)(const T* taps, std::size_t tap, std::size_t terms, std::size_t step, std::size_t columns,
                       T* panels, std::size_t plane);
  void (*add_tile_weights)(T* sums, std::size_t plane, std::size_t size, T* taps, std::size_t tap);
};

/// Returns the fastest kernel set for this processor, or the set with the given name. Throws
/// muster::configuration_error if there is no such set or if this processor cannot run it.
template <class T>
const kernel_set<T>& find_kernels(std::string_view name = {});

/// Returns the names of the kernel sets that this processor can run, fastest first.
std::vector<std::string_view> kernel_names();

}  // namespace nn
