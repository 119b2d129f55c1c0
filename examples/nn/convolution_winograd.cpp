#include "convolution_winograd.hpp"

#include <algorithm>

namespace nn {
namespace {

constexpr std::size_t side = winograd_tile::side, lines = winograd_tile::lines, planes = winograd_tile::planes;

extent tiles_of(const extent& image) {
  return {(image.height + side - 1) / side, (image.width + side - 1) / side, image.channels};
}
std::size_t count_of(const extent& tiles) { return tiles.height * tiles.width; }

/// From one plane to the next: a line of the cache more than it has, or all planes of a tile, which are written
/// together, would fall on the same few lines of the first cache.
template <class T>
std::size_t plane_step(std::size_t count, std::size_t channels) {
  return count * channels + 64 / sizeof(T);
}

/// Taps of rows x columns numbers, turned around and each transposed.
template <class T>
void turn(const T* taps, std::size_t rows, std::size_t columns, T* to) {
  constexpr std::size_t some = 16;  // by squares of so many: lines of the cache are read and written whole
  const std::size_t size = rows * columns;
  for (std::size_t tap = 0; tap < 9; ++tap) {
    const T* const from = taps + (8 - tap) * size;
    T* const out = to + tap * size;
    for (std::size_t top = 0; top < rows; top += some) {
      const std::size_t height = std::min(some, rows - top);
      for (std::size_t left = 0; left < columns; left += some) {
        const std::size_t width = std::min(some, columns - left);
        T square[some][some];
        for (std::size_t y = 0; y < height; ++y) {
          for (std::size_t x = 0; x < width; ++x) square[x][y] = from[(top + y) * columns + left + x];
        }
        for (std::size_t x = 0; x < width; ++x) std::copy_n(square[x], height, out + (left + x) * rows + top);
      }
    }
  }
}

}  // namespace

template <class T>
winograd_convolution<T>::winograd_convolution(const convolution_shape& shape, const kernel_set<T>& kernels)
    : convolution<T>(shape), kernels_(&kernels) {
  const extent out = shape.out();
  const std::size_t in_channels = shape.in.channels, out_channels = shape.out_channels;
  // Rows and columns behind: those of the last tile that are not of the image.
  input_ = {.border = shape.padding, .behind = side - 1, .inner = shape.in, .memory = {}};
  slope_ = {.border = 2 - shape.padding, .behind = side - 1, .inner = out, .memory = {}};
  // Tiles of a block should stay in the second cache, but so many that the weights are worth reading.
  const std::size_t tiles = std::max(count_of(tiles_of(out)), count_of(tiles_of(shape.in)));
  const std::size_t image_bytes = sizeof(T) * (planes * tiles * (in_channels + out_channels));
  constexpr std::size_t cache = 384 * 1024;
  const std::size_t least = std::max<std::size_t>(48, in_channels * out_channels / (in_channels + out_channels));
  block_ = std::max({std::size_t{1}, (least + tiles - 1) / tiles, std::min(cache / image_bytes, 2 * least / tiles)});
  input_.reserve(block_);
  slope_.reserve(block_);
  const std::size_t room = planes * plane_step<T>(block_ * tiles, std::max(in_channels, out_channels));
  taken_ = muster::buffer<T>(room);
  made_ = muster::buffer<T>(room);
  turned_taps_ = muster::buffer<T>(shape.weights());
  sums_ = muster::buffer<T>(planes * plane_step<T>(in_channels * out_channels, 1));
  forward_ = muster::buffer<T>(planes * plane_step<T>(in_channels, panel_columns(out_channels, kernels)));
  back_ = muster::buffer<T>(planes * plane_step<T>(out_channels, panel_columns(in_channels, kernels)));
  zeros_.resize(panel_columns(std::max(in_channels, out_channels), kernels));
  for (std::size_t n = 0; n < block_ * tiles; ++n) {
    const auto in = static_cast<std::int32_t>(n * in_channels), made = static_cast<std::int32_t>(n * out_channels);
    to_outputs_.push_back({in, made});
    to_inputs_.push_back({made, in});
  }
}

template <class T>
void winograd_convolution<T>::begin(std::span<const T> weights) {
  weights_ = weights;
  const std::size_t in_channels = this->shape().in.channels, out_channels = this->shape().out_channels;
  kernels_->tile_weights(weights.data(), in_channels, out_channels, forward_.data(),
                         plane_step<T>(in_channels, panel_columns(out_channels, *kernels_)));
  turned_ = false;
}

template <class T>
void winograd_convolution<T>::take_inputs(framed_images<T>& from, std::size_t images, const extent& to) {
  const extent tiles = tiles_of(to);
  const std::size_t channels = from.inner.channels, plane = plane_step<T>(images * count_of(tiles), channels);
  const tile_row row{tiles.width, channels, from.row_step()};
  T* out = taken_.data();
  for (std::size_t image = 0; image < images; ++image) {
    const T* const in = from.memory.data() + image * from.image_size();
    for (std::size_t y = 0; y < tiles.height; ++y, out += tiles.width * channels) {
      kernels_->tile_inputs(in + side * y * from.row_step(), row, out, plane);
    }
  }
}

template <class T>
void winograd_convolution<T>::convolve(framed_images<T>& from, std::size_t images, const muster::buffer<T>& panels,
                                       const T* start, T* out, const extent& to, bool add) {
  take_inputs(from, images, to);
  const extent tiles = tiles_of(to);
  const std::size_t terms = from.inner.channels, columns = to.channels, count = images * count_of(tiles);
  for (std::size_t plane = 0; plane < planes; ++plane) {
    kernels_->multiply({.in = taken_.data() + plane * plane_step<T>(count, terms),
                        .pixels = &from == &input_ ? to_outputs_.data() : to_inputs_.data(),
                        .pixel_count = count,
                        .rows = 1,
                        .row_step = 0,
                        .run = terms,
                        .panels = panels.data() + plane * plane_step<T>(terms, panel_columns(columns, *kernels_)),
                        .terms = terms,
                        .first = 0,
                        .row_terms = terms,
                        .out = made_.data() + plane * plane_step<T>(count, columns),
                        .columns = columns,
                        .start = zeros_.data(),
                        .add = false});
  }
  const tile_row row{tiles.width, columns, to.width * columns};
  const T* made = made_.data();
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t y = 0; y < tiles.height; ++y, made += tiles.width * columns) {
      kernels_->tile_outputs(made, plane_step<T>(count, columns), row, std::min(side, to.height - side * y), to.width,
                             start, out + image * to.size() + side * y * row.row_step, add);
    }
  }
}

template <class T>
void winograd_convolution<T>::forward(std::size_t images, const T* bias, T* out) {
  convolve(input_, images, forward_, bias != nullptr ? bias : zeros_.data(), out, this->shape().out(), false);
}

template <class T>
void winograd_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  if (!turned_) {
    const std::size_t in_channels = this->shape().in.channels, out_channels = this->shape().out_channels;
    turn(weights_.data(), in_channels, out_channels, turned_taps_.data());
    kernels_->tile_weights(turned_taps_.data(), out_channels, in_channels, back_.data(),
                           plane_step<T>(out_channels, panel_columns(in_channels, *kernels_)));
    turned_ = true;
  }
  convolve(slope_, images, back_, zeros_.data(), in, this->shape().in, add);
}

template <class T>
void winograd_convolution<T>::backward_weights(std::size_t images, const T* slopes, T*) {
  const extent out = this->shape().out(), tiles = tiles_of(out);
  const std::size_t in_channels = this->shape().in.channels, out_channels = out.channels;
  for (std::size_t image = 0; slopes != nullptr && image < images; ++image) {
    for (std::size_t y = 0; y < out.height; ++y) {
      std::copy_n(slopes + image * out.size() + y * out.width * out_channels, out.width * out_channels,
                  slope_.pixel(image, y, 0));
    }
  }
  take_inputs(input_, images, out);
  const std::size_t count = images * count_of(tiles);
  const tile_row row{tiles.width, out_channels, slope_.row_step()};
  T* to = made_.data();
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t y = 0; y < tiles.height; ++y, to += tiles.width * out_channels) {
      kernels_->tile_slopes(slope_.pixel(image, side * y, 0), row, to, plane_step<T>(count, out_channels));
    }
  }
  const std::size_t height = images * tiles.height;
  for (std::size_t plane = 0; plane < planes; ++plane) {
    kernels_->add_weights({.in = taken_.data() + plane * plane_step<T>(count, in_channels),
                           .in_image = count * in_channels,
                           .in_row = tiles.width * in_channels,
                           .in_pixel = in_channels,
                           .gradient = made_.data() + plane * plane_step<T>(count, out_channels),
                           .gradient_image = count * out_channels,
                           .gradient_row = tiles.width * out_channels,
                           .gradient_pixel = out_channels,
                           .images = 1,
                           .top = 0,
                           .height = height,
                           .width = tiles.width,
                           .in_height = height,
                           .in_width = tiles.width,
                           .channels = in_channels,
                           .padding = 0,
                           .stride = 1,
                           .rows = 1,
                           .row_step = 0,
                           .run = in_channels,
                           .columns = out_channels,
                           .to = sums_.data() + plane * plane_step<T>(in_channels * out_channels, 1)});
  }
}

template <class T>
void winograd_convolution<T>::finish(T* weights) {
  const std::size_t size = this->shape().in.channels * this->shape().out_channels;
  kernels_->add_tile_weights(sums_.data(), plane_step<T>(size, 1), size, weights);
}

template class winograd_convolution<float>;
template class winograd_convolution<double>;

}  // namespace nn
