#include "convolution_direct.hpp"

#include <algorithm>
#include <cstring>

namespace nn {
namespace {

/// Weights of `terms` rows, weight(t, c) = from[t * term_step + c * column_step], as rows first, first + 1 ... of
/// panels that have `all` rows. A panel has set.panel columns and, where fewer are left, set.lanes; the last one is
/// filled up with zeros.
template <class T>
void pack_panels(const T* from, std::size_t terms, std::size_t term_step, std::size_t columns, std::size_t column_step,
                 const kernel_set<T>& set, std::size_t first, std::size_t all, T* to) {
  for (std::size_t column = 0, panel = 0; column < columns; column += panel) {
    panel = columns - column < set.panel ? set.lanes : set.panel;
    const std::size_t width = std::min(panel, columns - column);
    T* const base = to + column * all + first * panel;
    for (std::size_t t = 0; t < terms; ++t) {
      const T* const source = from + t * term_step + column * column_step;
      if (column_step == 1) {
        std::memcpy(base + t * panel, source, width * sizeof(T));
      } else {
        for (std::size_t c = 0; c < width; ++c) base[t * panel + c] = source[c * column_step];
      }
      std::fill(base + t * panel + width, base + (t + 1) * panel, T{0});
    }
  }
}

/// Of all panels together.
template <class T>
std::size_t panel_columns(std::size_t columns, const kernel_set<T>& set) {
  return (columns + set.lanes - 1) / set.lanes * set.lanes;
}

}  // namespace

template <class T>
direct_convolution<T>::direct_convolution(const convolution_shape& shape, const kernel_set<T>& kernels)
    : convolution<T>(shape), kernels_(&kernels) {
  const extent out = shape.out();
  // Small images are done together, or the last tile of each would waste much and weights would be read too often.
  constexpr std::size_t pixels_at_once = 128;
  block_ = std::max<std::size_t>(1, pixels_at_once / (out.height * out.width));
  input_.inner = shape.in;
  input_.border = shape.padding;
  input_.reserve(block_);
  slope_.inner = out;
  const std::size_t reach = (shape.kernel + shape.stride - 1) / shape.stride - 1;
  const auto beyond = [&](std::size_t in_side, std::size_t out_side) {
    const std::size_t last = (in_side - 1 + shape.padding) / shape.stride;
    return last + 1 > out_side ? last + 1 - out_side : 0;
  };
  slope_.border = std::max({reach, beyond(shape.in.height, out.height), beyond(shape.in.width, out.width)});
  slope_.reserve(block_);
  panels_ =
      muster::buffer<T>(shape.kernel * shape.kernel * shape.in.channels * panel_columns(shape.out_channels, kernels));
  place_outputs();
  place_inputs();
}

template <class T>
void direct_convolution<T>::place_outputs() {
  const auto& shape = this->shape();
  const extent out = shape.out();
  for (std::size_t image = 0; image < block_; ++image) {
    for (std::size_t y = 0; y < out.height; ++y) {
      for (std::size_t x = 0; x < out.width; ++x) {
        const std::size_t in =
            image * input_.image_size() + y * shape.stride * input_.row_step() + x * shape.stride * shape.in.channels;
        const std::size_t to = image * out.size() + (y * out.width + x) * out.channels;
        places_.push_back({static_cast<std::int32_t>(in), static_cast<std::int32_t>(to)});
      }
    }
  }
}

template <class T>
void direct_convolution<T>::place_inputs() {
  const auto& shape = this->shape();
  const std::size_t s = shape.stride;
  const auto taps = [&](std::size_t first) { return first < shape.kernel ? (shape.kernel - first + s - 1) / s : 0; };
  for (std::size_t class_y = 0; class_y < s; ++class_y) {
    for (std::size_t class_x = 0; class_x < s; ++class_x) {
      pixel_class made;
      made.first_row = class_y;
      made.first_column = class_x;
      made.rows = taps(class_y);
      made.columns = taps(class_x);
      const bool any = made.rows > 0 && made.columns > 0;
      for (std::size_t image = 0; image < block_; ++image) {
        for (std::size_t y = 0; y < shape.in.height; ++y) {
          if ((y + shape.padding) % s != class_y) continue;
          for (std::size_t x = 0; x < shape.in.width; ++x) {
            if ((x + shape.padding) % s != class_x) continue;
            std::size_t from = 0;
            if (any) {
              // The first of the outputs that this input went into.
              const std::size_t top = (y + shape.padding) / s + slope_.border - (made.rows - 1);
              const std::size_t left = (x + shape.padding) / s + slope_.border - (made.columns - 1);
              from = image * slope_.image_size() + top * slope_.row_step() + left * shape.out_channels;
            }
            const std::size_t to = image * shape.in.size() + (y * shape.in.width + x) * shape.in.channels;
            made.places.push_back({static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
          }
        }
      }
      made.places_an_image = made.places.size() / block_;
      made.panels = muster::buffer<T>(made.rows * made.columns * shape.out_channels *
                                      panel_columns(shape.in.channels, *kernels_));
      classes_.push_back(std::move(made));
    }
  }
}

template <class T>
image_view<T> direct_convolution<T>::input(std::size_t k) noexcept {
  const auto& in = input_.inner;
  return {input_.pixel(k, 0, 0), in.height, in.width, in.channels, input_.row_step()};
}

template <class T>
image_view<T> direct_convolution<T>::slope(std::size_t k) noexcept {
  const auto& out = slope_.inner;
  return {slope_.pixel(k, 0, 0), out.height, out.width, out.channels, slope_.row_step()};
}

template <class T>
void direct_convolution<T>::begin(std::span<const T> weights) {
  const auto& shape = this->shape();
  weights_ = weights;
  turned_ = false;
  const std::size_t terms = shape.kernel * shape.kernel * shape.in.channels;
  pack_panels(weights.data(), terms, shape.out_channels, shape.out_channels, 1, *kernels_, 0, terms, panels_.data());
}

template <class T>
void direct_convolution<T>::forward(std::size_t images, T* out) {
  const auto& shape = this->shape();
  kernels_->multiply({.in = input_.memory.data(),
                      .pixels = places_.data(),
                      .pixel_count = places_.size() / block_ * images,
                      .rows = shape.kernel,
                      .row_step = input_.row_step(),
                      .run = shape.kernel * shape.in.channels,
                      .panels = panels_.data(),
                      .out = out,
                      .columns = shape.out_channels,
                      .add = false});
}

template <class T>
void direct_convolution<T>::pack(pixel_class& taps) {
  const auto& shape = this->shape();
  const std::size_t all = taps.rows * taps.columns * shape.out_channels;
  for (std::size_t r = 0; r < taps.rows; ++r) {
    for (std::size_t c = 0; c < taps.columns; ++c) {
      // The last tap of a class looks at the first of the outputs.
      const std::size_t ky = taps.first_row + shape.stride * (taps.rows - 1 - r);
      const std::size_t kx = taps.first_column + shape.stride * (taps.columns - 1 - c);
      const T* const from = weights_.data() + (ky * shape.kernel + kx) * shape.in.channels * shape.out_channels;
      pack_panels(from, shape.out_channels, 1, shape.in.channels, shape.out_channels, *kernels_,
                  (r * taps.columns + c) * shape.out_channels, all, taps.panels.data());
    }
  }
}

template <class T>
void direct_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  const auto& shape = this->shape();
  if (!turned_) {
    for (auto& taps : classes_) pack(taps);
    turned_ = true;
  }
  for (const auto& taps : classes_) {
    const std::size_t count = taps.places_an_image * images;
    if (taps.rows * taps.columns == 0) {
      for (std::size_t p = 0; p < count && !add; ++p) {
        std::fill_n(in + taps.places[p].out, shape.in.channels, T{0});
      }
      continue;
    }
    if (count == 0) continue;
    kernels_->multiply({.in = slope_.memory.data(),
                        .pixels = taps.places.data(),
                        .pixel_count = count,
                        .rows = taps.rows,
                        .row_step = slope_.row_step(),
                        .run = taps.columns * shape.out_channels,
                        .panels = taps.panels.data(),
                        .out = in,
                        .columns = shape.in.channels,
                        .add = add});
  }
}

template <class T>
void direct_convolution<T>::backward_weights(std::size_t images, T* weights) {
  const auto& shape = this->shape();
  const extent out = shape.out();
  kernels_->add_weights({.in = input_.memory.data(),
                         .in_image = input_.image_size(),
                         .in_row = shape.stride * input_.row_step(),
                         .in_pixel = shape.stride * shape.in.channels,
                         .gradient = slope_.pixel(0, 0, 0),
                         .gradient_image = slope_.image_size(),
                         .gradient_row = slope_.row_step(),
                         .gradient_pixel = out.channels,
                         .images = images,
                         .height = out.height,
                         .width = out.width,
                         .rows = shape.kernel,
                         .row_step = input_.row_step(),
                         .run = shape.kernel * shape.in.channels,
                         .columns = out.channels,
                         .to = weights});
}

template class direct_convolution<float>;
template class direct_convolution<double>;

}  // namespace nn
