// Which pixels a convolution brings together.
#pragma once

#include <cstddef>

#include "convolution.hpp"
#include "launch.hpp"

namespace nn::device {

/// A pixel of the result.
struct pixel_place {
  int image, y, x;
};
/// Sources [first, end).
struct source_range {
  int first, end;
};

/// Which pixel each tap of a pixel reads: a convolution's input, or, backward, the outputs that a pixel of it went
/// into.
struct tap_geometry {
  int height, width, source_height, source_width, kernel, stride, padding;
  bool backward;
  int pixels, sources;  // of all images

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
  /// Negative for one beyond the edge.
  NN_BOTH int source(const pixel_place& at, int down, int right) const {
    int y = backward ? at.y + padding - down : at.y * stride + down - padding;
    int x = backward ? at.x + padding - right : at.x * stride + right - padding;
    if (backward && stride > 1) {
      if (y < 0 || x < 0 || y % stride != 0 || x % stride != 0) return -1;
      y /= stride;
      x /= stride;
    }
    const bool inside = y >= 0 && y < source_height && x >= 0 && x < source_width;
    const int found = (at.image * source_height + y) * source_width + x;
    return inside && found < sources ? found : -1;
  }
  /// All that `count` pixels read.
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
};

}  // namespace nn::device
