#include "convolution_winograd.hpp"

#include <algorithm>

namespace nn {
namespace {

extent tiles_of(const extent& image) { return {(image.height + 1) / 2, (image.width + 1) / 2, image.channels}; }
std::size_t count_of(const extent& tiles) { return tiles.height * tiles.width; }

/// From one plane to the next: a line of the cache more than it has, or all planes of a tile, which are written
/// together, would fall on the same few lines of the first cache.
template <class T>
std::size_t plane_step(std::size_t count, std::size_t channels) {
  return count * channels + 64 / sizeof(T);
}

/// Three taps to four numbers: G of Winograd's F(2, 3).
template <class T>
void spread(std::size_t count, const T* a, const T* b, const T* c, T* p, T* q, T* r, T* s) {
  for (std::size_t i = 0; i < count; ++i) {
    const T outer = T(0.5) * (a[i] + c[i]), middle = T(0.5) * b[i];
    p[i] = a[i];
    q[i] = outer + middle;
    r[i] = outer - middle;
    s[i] = c[i];
  }
}

/// The four back to three, G^T, set or added to.
template <bool Add, class T>
void gather(std::size_t count, const T* p, const T* q, const T* r, const T* s, T* a, T* b, T* c) {
  for (std::size_t i = 0; i < count; ++i) {
    const T both = T(0.5) * (q[i] + r[i]);
    a[i] = (Add ? a[i] : T{0}) + (p[i] + both);
    b[i] = (Add ? b[i] : T{0}) + T(0.5) * (q[i] - r[i]);
    c[i] = (Add ? c[i] : T{0}) + (both + s[i]);
  }
}

}  // namespace

template <class T>
winograd_convolution<T>::winograd_convolution(const convolution_shape& shape, const kernel_set<T>& kernels)
    : convolution<T>(shape), kernels_(&kernels) {
  const extent out = shape.out();
  const std::size_t in_channels = shape.in.channels, out_channels = shape.out_channels;
  // One row and column more: the last tile of an odd image.
  input_ = {.border = shape.padding, .behind = 1, .inner = shape.in, .memory = {}};
  slope_ = {.border = 2 - shape.padding, .behind = 1, .inner = out, .memory = {}};
  // Tiles of a block should stay in the second cache, but so many that the weights are worth reading.
  const std::size_t tiles = std::max(count_of(tiles_of(out)), count_of(tiles_of(shape.in)));
  const std::size_t image_bytes = sizeof(T) * (planes * tiles * (in_channels + out_channels));
  constexpr std::size_t cache = 384 * 1024, least = 48;
  block_ = std::max({std::size_t{1}, (least + tiles - 1) / tiles, std::min(cache / image_bytes, 2 * least / tiles)});
  input_.reserve(block_);
  slope_.reserve(block_);
  const std::size_t room = planes * plane_step<T>(block_ * tiles, std::max(in_channels, out_channels));
  taken_ = muster::buffer<T>(room);
  made_ = muster::buffer<T>(room);
  weights_ = muster::buffer<T>(planes * plane_step<T>(in_channels * out_channels, 1));
  sums_ = muster::buffer<T>(planes * plane_step<T>(in_channels * out_channels, 1));
  forward_ = muster::buffer<T>(planes * in_channels * panel_columns(out_channels, kernels));
  back_ = muster::buffer<T>(planes * out_channels * panel_columns(in_channels, kernels));
  zeros_.resize(panel_columns(std::max(in_channels, out_channels), kernels));
  for (std::size_t n = 0; n < block_ * tiles; ++n) {
    const auto in = static_cast<std::int32_t>(n * in_channels), made = static_cast<std::int32_t>(n * out_channels);
    to_outputs_.push_back({in, made});
    to_inputs_.push_back({made, in});
  }
}

template <class T>
void winograd_convolution<T>::begin(std::span<const T> weights) {
  const std::size_t size = this->shape().in.channels * this->shape().out_channels;
  const std::size_t step = plane_step<T>(size, 1);
  // G w G^T, first down the columns of taps and then along the rows.
  constexpr std::size_t few = 32;
  for (std::size_t at = 0; at < size; at += few) {
    const std::size_t count = std::min(few, size - at);
    T half[4][3][few];
    for (std::size_t x = 0; x < 3; ++x) {
      const T* const top = weights.data() + x * size + at;
      spread(count, top, top + 3 * size, top + 6 * size, half[0][x], half[1][x], half[2][x], half[3][x]);
    }
    for (std::size_t y = 0; y < 4; ++y) {
      T* const to = weights_.data() + 4 * y * step + at;
      spread(count, half[y][0], half[y][1], half[y][2], to, to + step, to + 2 * step, to + 3 * step);
    }
  }
  pack(forward_, false);
  turned_ = false;
}

// The taps turned around make the same planes, but for the first and the last that change places.
template <class T>
void winograd_convolution<T>::pack(muster::buffer<T>& panels, bool turned) {
  const std::size_t in = this->shape().in.channels, out = this->shape().out_channels;
  const auto other = [](std::size_t i) { return i == 0 ? 3 : i == 3 ? 0 : i; };
  const std::size_t terms = turned ? out : in, columns = turned ? in : out;
  for (std::size_t y = 0; y < 4; ++y) {
    for (std::size_t x = 0; x < 4; ++x) {
      const std::size_t plane = turned ? 4 * other(y) + other(x) : 4 * y + x;
      pack_panels(weights_.data() + plane * plane_step<T>(in * out, 1), terms, turned ? 1 : out, columns,
                  turned ? out : 1, *kernels_, 0, terms,
                  panels.data() + (4 * y + x) * terms * panel_columns(columns, *kernels_));
    }
  }
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
      kernels_->tile_inputs(in + 2 * y * from.row_step(), row, out, plane);
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
                        .panels = panels.data() + plane * terms * panel_columns(columns, *kernels_),
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
      kernels_->tile_outputs(made, plane_step<T>(count, columns), row, std::min<std::size_t>(2, to.height - 2 * y),
                             to.width, start, out + image * to.size() + 2 * y * row.row_step, add);
    }
  }
}

template <class T>
void winograd_convolution<T>::forward(std::size_t images, const T* bias, T* out) {
  convolve(input_, images, forward_, bias != nullptr ? bias : zeros_.data(), out, this->shape().out(), false);
}

template <class T>
void winograd_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  if (!turned_) pack(back_, true);
  turned_ = true;
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
      kernels_->tile_slopes(slope_.pixel(image, 2 * y, 0), row, to, plane_step<T>(count, out_channels));
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

// G^T s G of what the planes have summed up to.
template <class T>
void winograd_convolution<T>::finish(T* weights) {
  const std::size_t size = this->shape().in.channels * this->shape().out_channels;
  const std::size_t step = plane_step<T>(size, 1);
  constexpr std::size_t few = 32;
  for (std::size_t at = 0; at < size; at += few) {
    const std::size_t count = std::min(few, size - at);
    T half[3][4][few];
    for (std::size_t x = 0; x < 4; ++x) {
      const T* const plane = sums_.data() + x * step + at;
      gather<false>(count, plane, plane + 4 * step, plane + 8 * step, plane + 12 * step, half[0][x], half[1][x],
                    half[2][x]);
    }
    for (std::size_t y = 0; y < 3; ++y) {
      T* const to = weights + 3 * y * size + at;
      gather<true>(count, half[y][0], half[y][1], half[y][2], half[y][3], to, to + size, to + 2 * size);
    }
  }
  std::fill_n(sums_.data(), planes * step, T{0});
}

template class winograd_convolution<float>;
template class winograd_convolution<double>;

}  // namespace nn
