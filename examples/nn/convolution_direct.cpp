#include "convolution_direct.hpp"

#include <algorithm>

#include "panels.hpp"

namespace nn {
template <class T>
direct_convolution<T>::direct_convolution(const convolution_shape& shape, const kernel_set<T>& kernels)
    : convolution<T>(shape), kernels_(&kernels) {
  const extent out = shape.out();
  input_.inner = shape.in;
  input_.border = shape.padding;
  slope_.inner = out;
  const std::size_t reach = (shape.kernel + shape.stride - 1) / shape.stride - 1;
  const auto beyond = [&](std::size_t in_side, std::size_t out_side) {
    const std::size_t last = (in_side - 1 + shape.padding) / shape.stride;
    return last + 1 > out_side ? last + 1 - out_side : 0;
  };
  slope_.border = std::max({reach, beyond(shape.in.height, out.height), beyond(shape.in.width, out.width)});
  make_classes();
  choose_block();
  bias_.resize(panel_columns(shape.out_channels, kernels));
  zeros_.resize(panel_columns(shape.in.channels, kernels));
  input_.reserve(block_);
  slope_.reserve(block_);
  place(outputs_, input_, out);
  for (auto& each : inputs_) place(each, slope_, shape.in);
}

template <class T>
void direct_convolution<T>::make_classes() {
  const auto& shape = this->shape();
  const extent out = shape.out();
  const std::size_t s = shape.stride;
  const auto along = [&](std::size_t side, std::size_t in_side) {
    tap_axis axis{{}, shape.kernel, in_side};
    for (std::size_t at = 0; at < side; ++at) {
      axis.lines.push_back({at, static_cast<std::ptrdiff_t>(at * s) - static_cast<std::ptrdiff_t>(shape.padding)});
    }
    return axis;
  };
  outputs_.rows = along(out.height, shape.in.height);
  outputs_.columns = along(out.width, shape.in.width);
  outputs_.panels =
      muster::buffer<T>(shape.kernel * shape.kernel * shape.in.channels * panel_columns(shape.out_channels, *kernels_));
  // Reverses the taps for the backward pass: the taps of a class read the outputs to which an input of this class
  // contributed. The last tap reads the first output.
  const auto back = [&](std::size_t first, std::size_t in_side, std::size_t side) {
    tap_axis axis{{}, first < shape.kernel ? (shape.kernel - first + s - 1) / s : 0, side};
    for (std::size_t at = 0; at < in_side; ++at) {
      if ((at + shape.padding) % s != first) continue;
      axis.lines.push_back(
          {at, static_cast<std::ptrdiff_t>((at + shape.padding) / s + 1) - static_cast<std::ptrdiff_t>(axis.taps)});
    }
    return axis;
  };
  for (std::size_t row = 0; row < s; ++row) {
    for (std::size_t column = 0; column < s; ++column) {
      pixel_class added_class;
      added_class.first_row = row;
      added_class.first_column = column;
      added_class.rows = back(row, shape.in.height, out.height);
      added_class.columns = back(column, shape.in.width, out.width);
      added_class.panels = muster::buffer<T>(added_class.rows.taps * added_class.columns.taps * shape.out_channels *
                                             panel_columns(shape.in.channels, *kernels_));
      inputs_.push_back(std::move(added_class));
    }
  }
}

// Small images are processed in blocks. Otherwise each group's last tile would be mostly empty, and the weights
// would be read too often. The inputs of a block should stay in the second-level cache.
template <class T>
void direct_convolution<T>::choose_block() {
  constexpr std::size_t pixels_at_once = 128, cache = 384 * 1024;
  const extent out = this->shape().out();
  const std::size_t least = std::max<std::size_t>(1, pixels_at_once / (out.height * out.width));
  const std::size_t most = cache / ((input_.image_size() + slope_.image_size()) * sizeof(T));
  double best = 0;
  for (std::size_t block = least; block == least || (block <= most && block <= 4 * least); ++block) {
    std::size_t cost = tap_groups(outputs_.rows, outputs_.columns, block, kernels_->pixels).cost();
    for (const auto& each : inputs_) cost += tap_groups(each.rows, each.columns, block, kernels_->pixels).cost();
    const double an_image = static_cast<double>(cost) / static_cast<double>(block);
    if (block > least && an_image > 0.99 * best) continue;
    best = an_image;
    block_ = block;
  }
}

template <class T>
void direct_convolution<T>::place(pixel_class& pixels, const framed_images<T>& from, const extent& to) {
  const tap_groups groups(pixels.rows, pixels.columns, block_, kernels_->pixels);
  const auto inside = [&](const pixel_line& line, const tap_range& taps) {
    return static_cast<std::size_t>(line.base + static_cast<std::ptrdiff_t>(from.border + taps.first));
  };
  for (const auto& rows : groups.rows()) {
    for (const auto& columns : groups.columns()) {
      pixel_group group{rows.taps, columns.taps, {}, rows.lines.size() * columns.lines.size()};
      const bool any = rows.taps.count > 0 && columns.taps.count > 0;
      for (std::size_t image = 0; image < block_; ++image) {
        for (const auto& y : rows.lines) {
          for (const auto& x : columns.lines) {
            const std::size_t in = !any ? 0
                                        : image * from.image_size() + inside(y, rows.taps) * from.row_step() +
                                              inside(x, columns.taps) * from.inner.channels;
            const std::size_t out = image * to.size() + (y.at * to.width + x.at) * to.channels;
            group.places.push_back({static_cast<std::int32_t>(in), static_cast<std::int32_t>(out)});
          }
        }
      }
      pixels.groups.push_back(std::move(group));
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
  pack_panels(weights.data(), terms, shape.out_channels, shape.out_channels, 1, *kernels_, 0, terms,
              outputs_.panels.data());
}

template <class T>
void direct_convolution<T>::multiply(const pixel_class& pixels, const framed_images<T>& from, std::size_t images,
                                     const T* start, T* out, const extent& to, bool add) {
  const std::size_t channels = from.inner.channels;
  for (const auto& group : pixels.groups) {
    const std::size_t count = group.an_image * images;
    if (group.rows.count * group.columns.count == 0) {
      for (std::size_t p = 0; p < count && !add; ++p) std::copy_n(start, to.channels, out + group.places[p].out);
      continue;
    }
    kernels_->multiply({.in = from.memory.data(),
                        .pixels = group.places.data(),
                        .pixel_count = count,
                        .rows = group.rows.count,
                        .row_step = from.row_step(),
                        .run = group.columns.count * channels,
                        .panels = pixels.panels.data(),
                        .terms = pixels.rows.taps * pixels.columns.taps * channels,
                        .first = (group.rows.first * pixels.columns.taps + group.columns.first) * channels,
                        .row_terms = pixels.columns.taps * channels,
                        .out = out,
                        .columns = to.channels,
                        .start = start,
                        .add = add});
  }
}

template <class T>
void direct_convolution<T>::forward(std::size_t images, const T* bias, T* out) {
  const std::size_t channels = this->shape().out_channels;
  bias != nullptr ? std::copy_n(bias, channels, bias_.begin()) : std::fill_n(bias_.begin(), channels, T{0});
  multiply(outputs_, input_, images, bias_.data(), out, this->shape().out(), false);
}

template <class T>
void direct_convolution<T>::pack(pixel_class& taps) {
  const auto& shape = this->shape();
  const std::size_t rows = taps.rows.taps, columns = taps.columns.taps, all = rows * columns * shape.out_channels;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      // The last tap of a class reads the first output.
      const std::size_t ky = taps.first_row + shape.stride * (rows - 1 - r);
      const std::size_t kx = taps.first_column + shape.stride * (columns - 1 - c);
      const T* const from = weights_.data() + (ky * shape.kernel + kx) * shape.in.channels * shape.out_channels;
      pack_panels(from, shape.out_channels, 1, shape.in.channels, shape.out_channels, *kernels_,
                  (r * columns + c) * shape.out_channels, all, taps.panels.data());
    }
  }
}

template <class T>
void direct_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  if (!turned_) {
    for (auto& each : inputs_) pack(each);
    turned_ = true;
  }
  for (const auto& each : inputs_) multiply(each, slope_, images, zeros_.data(), in, this->shape().in, add);
}

template <class T>
void direct_convolution<T>::backward_weights(std::size_t images, const T* slopes, T* weights) {
  const auto& shape = this->shape();
  const extent out = shape.out();
  kernels_->add_weights({.in = input_.memory.data(),
                         .in_image = input_.image_size(),
                         .in_row = shape.stride * input_.row_step(),
                         .in_pixel = shape.stride * shape.in.channels,
                         .gradient = slopes != nullptr ? slopes : slope_.pixel(0, 0, 0),
                         .gradient_image = slopes != nullptr ? out.size() : slope_.image_size(),
                         .gradient_row = slopes != nullptr ? out.width * out.channels : slope_.row_step(),
                         .gradient_pixel = out.channels,
                         .images = images,
                         .top = 0,
                         .height = out.height,
                         .width = out.width,
                         .in_height = shape.in.height,
                         .in_width = shape.in.width,
                         .channels = shape.in.channels,
                         .padding = shape.padding,
                         .stride = shape.stride,
                         .rows = shape.kernel,
                         .row_step = input_.row_step(),
                         .run = shape.kernel * shape.in.channels,
                         .columns = out.channels,
                         .to = weights});
}

template class direct_convolution<float>;
template class direct_convolution<double>;

}  // namespace nn
