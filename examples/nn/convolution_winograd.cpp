#include "convolution_winograd.hpp"

#include <algorithm>
#include <utility>

namespace nn {
namespace {

constexpr std::size_t side = winograd_tile::side, lines = winograd_tile::lines, planes = winograd_tile::planes;

extent tiles_of(const extent& image) {
  return {(image.height + side - 1) / side, (image.width + side - 1) / side, image.channels};
}
/// Size in bytes of a core's second-level cache on current servers, and the part that one array among several should
/// use.
constexpr std::size_t cache = 1024 * 1024, part_of_cache = 384 * 1024;

std::size_t count_of(const extent& tiles) { return tiles.height * tiles.width; }

/// Returns the distance between two planes: their size plus one cache line. Without this line, all planes of a tile,
/// which are written together, would map to the same few lines of the first-level cache.
template <class T>
std::size_t plane_step(std::size_t count, std::size_t channels) {
  return count * channels + 64 / sizeof(T);
}

/// Transposes and reverses taps of rows x columns numbers, `tap` elements apart.
template <class T>
void turn(const T* taps, std::size_t tap, std::size_t rows, std::size_t columns, T* to) {
  constexpr std::size_t some = 16;  // Side of the square blocks: cache lines are read and written whole.
  for (std::size_t k = 0; k < 9; ++k, to += rows * columns) {
    const T* const from = taps + (8 - k) * tap;
    for (std::size_t top = 0; top < rows; top += some) {
      const std::size_t height = std::min(some, rows - top);
      for (std::size_t left = 0; left < columns; left += some) {
        const std::size_t width = std::min(some, columns - left);
        T square[some][some];
        for (std::size_t y = 0; y < height; ++y) {
          for (std::size_t x = 0; x < width; ++x) square[x][y] = from[(top + y) * columns + left + x];
        }
        for (std::size_t x = 0; x < width; ++x) std::copy_n(square[x], height, to + (left + x) * rows + top);
      }
    }
  }
}

/// Returns the number of elements of `all` that fit in `bytes`, as a multiple of `step`: at least `step`, and at most
/// `all`.
std::size_t as_many(std::size_t all, std::size_t step, std::size_t bytes_each, std::size_t bytes) {
  return std::min(all, std::max(step, bytes / bytes_each / step * step));
}

}  // namespace

template <class T>
winograd_convolution<T>::winograd_convolution(const convolution_shape& shape, const kernel_set<T>& kernels,
                                              std::shared_ptr<workspace<T>> work)
    : convolution<T>(shape), kernels_(&kernels), work_(std::move(work)) {
  const extent in = shape.in, out = shape.out();
  // The rows and columns behind the image belong to the last tile and not to the image.
  forward_.from = {.border = shape.padding, .behind = side - 1, .inner = in, .memory = {}};
  back_.from = {.border = 2 - shape.padding, .behind = side - 1, .inner = out, .memory = {}};
  forward_.to = out;
  back_.to = in;
  // The tiles of a block should stay in the second-level cache. There should also be enough tiles that the weights,
  // which are read for each block, are no larger than the tiles.
  const std::size_t tiles = std::max(count_of(tiles_of(out)), count_of(tiles_of(in)));
  const std::size_t image_bytes = sizeof(T) * (planes * tiles * (in.channels + out.channels));
  const std::size_t least = std::max<std::size_t>(48, in.channels * out.channels / (in.channels + out.channels));
  block_ =
      std::max({std::size_t{1}, (least + tiles - 1) / tiles, std::min(part_of_cache / image_bytes, 2 * least / tiles)});
  prepare(forward_, block_ * tiles);
  prepare(back_, block_ * tiles);
  const std::size_t room = planes * plane_step<T>(block_ * tiles, std::max(in.channels, out.channels));
  workspace<T>::reserve(work_->operands, room);
  workspace<T>::reserve(work_->products, room);
  workspace<T>::reserve(work_->turned, 9 * out.channels * back_.group);
  terms_ = as_many(in.channels, kernels.pixels, planes * out.channels * sizeof(T), part_of_cache);
  workspace<T>::reserve(work_->sums, planes * plane_step<T>(terms_, out.channels));
  zeros_.resize(panel_columns(std::max(in.channels, out.channels), kernels));
}

template <class T>
void winograd_convolution<T>::prepare(direction& way, std::size_t tiles) {
  const std::size_t terms = way.from.inner.channels, columns = way.to.channels;
  way.from.reserve(block_);
  way.group = as_many(columns, kernels_->panel, planes * terms * sizeof(T), cache);
  workspace<T>::reserve(work_->panels, planes * plane_step<T>(terms, panel_columns(way.group, *kernels_)));
  for (std::size_t n = 0; n < tiles; ++n)
    way.tiles.push_back({static_cast<std::int32_t>(n * terms), static_cast<std::int32_t>(n * columns)});
}

template <class T>
void winograd_convolution<T>::begin(std::span<const T> weights) {
  weights_ = weights;
  work_->panels_of = nullptr;
}

template <class T>
void winograd_convolution<T>::make_panels(direction& way, std::size_t column, std::size_t columns) {
  const std::size_t terms = way.from.inner.channels, all = terms * way.to.channels;
  const std::size_t plane = plane_step<T>(terms, panel_columns(columns, *kernels_));
  if (&way == &forward_) {
    kernels_->tile_weights(weights_.data() + column, all, terms, way.to.channels, columns, work_->panels.data(), plane);
  } else {
    turn(weights_.data() + column * terms, all, columns, terms, work_->turned.data());
    kernels_->tile_weights(work_->turned.data(), terms * columns, terms, columns, columns, work_->panels.data(), plane);
  }
}

template <class T>
void winograd_convolution<T>::take_inputs(const direction& way, std::size_t images, const extent& to) {
  const extent tiles = tiles_of(to);
  const auto& from = way.from;
  const std::size_t channels = from.inner.channels, plane = plane_step<T>(images * count_of(tiles), channels);
  const tile_row row{tiles.width, channels, from.row_step()};
  T* out = work_->operands.data();
  for (std::size_t image = 0; image < images; ++image) {
    const T* const in = from.memory.data() + image * from.image_size();
    for (std::size_t y = 0; y < tiles.height; ++y, out += tiles.width * channels) {
      kernels_->tile_inputs(in + side * y * from.row_step(), row, out, plane);
    }
  }
}

template <class T>
void winograd_convolution<T>::convolve(direction& way, std::size_t images, const T* start, T* out, bool add) {
  take_inputs(way, images, way.to);
  const extent to = way.to, tiles = tiles_of(to);
  const std::size_t terms = way.from.inner.channels, count = images * count_of(tiles);
  for (std::size_t column = 0; column < to.channels; column += way.group) {
    const std::size_t columns = std::min(way.group, to.channels - column);
    if (work_->panels_of != &way) make_panels(way, column, columns);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      kernels_->multiply(
          {.in = work_->operands.data() + plane * plane_step<T>(count, terms),
           .pixels = way.tiles.data(),
           .pixel_count = count,
           .rows = 1,
           .row_step = 0,
           .run = terms,
           .panels = work_->panels.data() + plane * plane_step<T>(terms, panel_columns(columns, *kernels_)),
           .terms = terms,
           .first = 0,
           .row_terms = terms,
           .out = work_->products.data() + plane * plane_step<T>(count, to.channels) + column,
           .columns = columns,
           .start = zeros_.data(),
           .add = false});
    }
  }
  work_->panels_of = way.group >= to.channels ? &way : nullptr;
  const tile_row row{tiles.width, to.channels, to.width * to.channels};
  const T* products = work_->products.data();
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t y = 0; y < tiles.height; ++y, products += tiles.width * to.channels) {
      kernels_->tile_outputs(products, plane_step<T>(count, to.channels), row, std::min(side, to.height - side * y),
                             to.width, start, out + image * to.size() + side * y * row.row_step, add);
    }
  }
}

template <class T>
void winograd_convolution<T>::forward(std::size_t images, const T* bias, T* out) {
  convolve(forward_, images, bias != nullptr ? bias : zeros_.data(), out, false);
}

template <class T>
void winograd_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  convolve(back_, images, zeros_.data(), in, add);
}

template <class T>
void winograd_convolution<T>::backward_weights(std::size_t images, const T* slopes, T* weights) {
  const extent out = this->shape().out(), tiles = tiles_of(out);
  const std::size_t in_channels = this->shape().in.channels, out_channels = out.channels;
  auto& slope = back_.from;
  for (std::size_t image = 0; slopes != nullptr && image < images; ++image) {
    for (std::size_t y = 0; y < out.height; ++y) {
      std::copy_n(slopes + image * out.size() + y * out.width * out_channels, out.width * out_channels,
                  slope.pixel(image, y, 0));
    }
  }
  take_inputs(forward_, images, out);
  const std::size_t count = images * count_of(tiles);
  const tile_row row{tiles.width, out_channels, slope.row_step()};
  T* to = work_->products.data();
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t y = 0; y < tiles.height; ++y, to += tiles.width * out_channels) {
      kernels_->tile_slopes(slope.pixel(image, side * y, 0), row, to, plane_step<T>(count, out_channels));
    }
  }
  const std::size_t height = images * tiles.height;
  for (std::size_t first = 0; first < in_channels; first += terms_) {
    const std::size_t terms = std::min(terms_, in_channels - first);
    for (std::size_t plane = 0; plane < planes; ++plane) {
      kernels_->add_weights({.in = work_->operands.data() + plane * plane_step<T>(count, in_channels) + first,
                             .in_image = count * in_channels,
                             .in_row = tiles.width * in_channels,
                             .in_pixel = in_channels,
                             .gradient = work_->products.data() + plane * plane_step<T>(count, out_channels),
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
                             .run = terms,
                             .columns = out_channels,
                             .to = work_->sums.data() + plane * plane_step<T>(terms_, out_channels)});
    }
    kernels_->add_tile_weights(work_->sums.data(), plane_step<T>(terms_, out_channels), terms * out_channels,
                               weights + first * out_channels, in_channels * out_channels);
  }
}

template class winograd_convolution<float>;
template class winograd_convolution<double>;

}  // namespace nn
