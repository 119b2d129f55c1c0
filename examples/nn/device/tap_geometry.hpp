// The pixels that each output pixel of a convolution reads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "convolution.hpp"
#include "launch.hpp"

namespace nn::device {

/// The position of a pixel of the result.
struct pixel_place {
  int image, y, x;
};
/// The locations of a pixel's taps: at `base` plus an offset, for taps whose row and column have a bit set. Other taps
/// are zeros.
struct tap_row {
  int base;
  std::uint32_t rows, columns;
  [[nodiscard]] NN_BOTH bool has(int down, int right) const { return (rows >> down & columns >> right & 1) != 0; }
};
/// A range of sources [first, end).
struct source_range {
  int first, end;
};

/// The mapping from a pixel's taps to the pixels that they read: a convolution's input, or, in the backward pass, the
/// outputs that depend on the pixel.
struct tap_geometry {
  int height, width, source_height, source_width, kernel, stride, padding;
  bool backward;
  int pixels, sources;  // Numbers over all images.

  tap_geometry() = default;
  tap_geometry(const convolution_shape& shape, std::size_t images, bool back)
      : kernel(static_cast<int>(shape.kernel)),
        stride(static_cast<int>(shape.stride)),
        padding(static_cast<int>(shape.padding)),
        backward(back) {
    const extent out = shape.out();
    const extent& to = back ? shape.in : out;
    const extent& from = back ? out : shape.in;
    height = static_cast<int>(to.height);
    width = static_cast<int>(to.width);
    source_height = static_cast<int>(from.height);
    source_width = static_cast<int>(from.width);
    pixels = static_cast<int>(images) * height * width;
    sources = static_cast<int>(images) * source_height * source_width;
  }

  NN_BOTH pixel_place place(int pixel) const {
    const int row = pixel / width;
    return {row / height, row % height, pixel - row * width};
  }
  NN_BOTH tap_row row(int pixel) const {
    if (pixel >= pixels) return {0, 0, 0};
    const pixel_place at = place(pixel);
    const int y = backward ? (at.y + padding) / stride : at.y * stride - padding;
    const int x = backward ? (at.x + padding) / stride : at.x * stride - padding;
    tap_row taps_of_row{(at.image * source_height + y) * source_width + x, 0, 0};
    for (int tap = 0; tap < kernel; ++tap) {
      taps_of_row.rows |= static_cast<std::uint32_t>(inside(at.y, tap, source_height)) << tap;
      taps_of_row.columns |= static_cast<std::uint32_t>(inside(at.x, tap, source_width)) << tap;
    }
    return taps_of_row;
  }
  /// Returns the offset that a tap adds to the base of a row. In the backward pass a pixel has taps only at every
  /// `stride`-th place.
  NN_BOTH int offset(int down, int right) const {
    return backward ? -(down / stride * source_width + right / stride) : down * source_width + right;
  }
  /// Returns the range of sources that `count` pixels read.
  NN_BOTH source_range range(int first, int count) const {
    const pixel_place a = place(first), b = place(first + count - 1 < pixels ? first + count - 1 : pixels - 1);
    const int reach = kernel - 1;
    int low, high;
    if (backward) {
      const auto down = [&](int value) { return value < 0 ? (value - stride + 1) / stride : value / stride; };
      low = (a.image * source_height + down(a.y + padding - reach)) * source_width +
            (stride > 1 ? down(padding - reach) : a.x + padding - reach);
      high = (b.image * source_height + (b.y + padding) / stride) * source_width +
             (stride > 1 ? source_width - 1 : b.x + padding);
    } else {
      low = (a.image * source_height + a.y * stride - padding) * source_width + a.x * stride - padding;
      high = (b.image * source_height + b.y * stride - padding + reach) * source_width + b.x * stride - padding + reach;
    }
    low = low < 0 ? 0 : low;
    high = high >= sources ? sources - 1 : high;
    return {low, high < low ? low : high + 1};
  }

 private:
  NN_BOTH bool inside(int at, int tap, int size) const {
    const int from = backward ? at + padding - tap : at * stride + tap - padding;
    if (!backward || stride == 1) return from >= 0 && from < size;
    return from >= 0 && from % stride == 0 && from / stride < size;
  }
};

}  // namespace nn::device
