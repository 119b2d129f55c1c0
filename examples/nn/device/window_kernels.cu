// Kernels that combine or select pixels: shortcuts and poolings.
#include <muster/core/float16.hpp>

#include "cells.hpp"
#include "kernels.hpp"

namespace nn::device {
namespace {

/// The position of a pixel in a batch of images.
struct place {
  std::size_t image, y, x;
  NN_BOTH place(std::size_t row, const extent& of)
      : image(row / (of.width * of.height)), y(row / of.width % of.height), x(row % of.width) {}
};
NN_BOTH inline std::size_t row_of(std::size_t image, std::size_t y, std::size_t x, const extent& of) {
  return (image * of.height + y) * of.width + x;
}

template <class A>
struct padded {
  const A* in;
  A* out;
  extent from, to;
  std::size_t stride, before;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    const place at(row, to);
    const bool is_new = column < before || column >= before + from.channels;
    out[row * to.channels + column] =
        is_new ? A(0.0f) : in[row_of(at.image, at.y * stride, at.x * stride, from) * from.channels + column - before];
  }
};

template <class A>
struct unpadded {
  const A* slope;
  A* gradient;
  extent from, to;
  std::size_t stride, before;
  bool adds;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    const place at(row, from);
    const bool taken = at.y % stride == 0 && at.x % stride == 0;
    const float value =
        taken ? static_cast<float>(
                    slope[row_of(at.image, at.y / stride, at.x / stride, to) * to.channels + before + column])
              : 0.0f;
    give(gradient + row * from.channels + column, adds, value);
  }
};

template <class A>
struct largest {
  const A* in;
  A* out;
  std::uint8_t* taps;
  extent from, to;
  std::size_t kernel, stride, padding;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    const place at(row, to);
    float best = 0;
    unsigned tap = 255;  // None selected yet.
    for (std::size_t k = 0; k < kernel * kernel; ++k) {
      const std::size_t y = at.y * stride + k / kernel - padding, x = at.x * stride + k % kernel - padding;
      // Skips pixels beyond the edge, including negative coordinates (unsigned wrap).
      if (y >= from.height || x >= from.width) continue;
      const auto value = static_cast<float>(in[row_of(at.image, y, x, from) * from.channels + column]);
      if (tap != 255 && !(value > best)) continue;
      best = value;
      tap = static_cast<unsigned>(k);
    }
    out[row * to.channels + column] = A(best);
    taps[row * to.channels + column] = static_cast<std::uint8_t>(tap);
  }
};

template <class A>
struct unpooled {
  const A* slope;
  const std::uint8_t* taps;
  A* gradient;
  extent from, to;
  std::size_t kernel, stride, padding;
  bool adds;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    const place at(row, from);
    float sum = 0;
    for (std::size_t k = 0; k < kernel * kernel; ++k) {  // Windows whose k-th pixel is this pixel.
      const std::size_t y = at.y + padding - k / kernel, x = at.x + padding - k % kernel;
      if (y % stride != 0 || x % stride != 0 || y / stride >= to.height || x / stride >= to.width) continue;
      const std::size_t cell = row_of(at.image, y / stride, x / stride, to) * to.channels + column;
      if (taps[cell] == k) sum += static_cast<float>(slope[cell]);
    }
    give(gradient + row * from.channels + column, adds, sum);
  }
};

template <class A>
struct averaged {
  const A* in;
  A* out;
  std::size_t pixels, width;
  NN_BOTH void operator()(std::size_t image, std::size_t column) const {
    float sum = 0;
    for (std::size_t p = 0; p < pixels; ++p) sum += static_cast<float>(in[(image * pixels + p) * width + column]);
    out[image * width + column] = A(sum / static_cast<float>(pixels));
  }
};

template <class A>
struct spread {
  const A* slope;
  A* gradient;
  std::size_t pixels, width;
  bool adds;
  NN_BOTH void operator()(std::size_t row, std::size_t column) const {
    give(gradient + row * width + column, adds,
         static_cast<float>(slope[row / pixels * width + column]) / static_cast<float>(pixels));
  }
};

}  // namespace

template <class A>
void pad_shortcut(const A* in, std::size_t images, const extent& from, const extent& to, std::size_t stride, A* out,
                  muster::device_stream_ref stream) {
  over_cells(stream, images * to.height * to.width, to.channels,
             padded<A>{in, out, from, to, stride, (to.channels - from.channels) / 2});
}

template <class A>
void pad_shortcut_backward(const A* slope, std::size_t images, const extent& from, const extent& to, std::size_t stride,
                           A* gradient, bool adds, muster::device_stream_ref stream) {
  over_cells(stream, images * from.height * from.width, from.channels,
             unpadded<A>{slope, gradient, from, to, stride, (to.channels - from.channels) / 2, adds});
}

template <class A>
void max_pool(const A* in, std::size_t images, const extent& from, const extent& to, const pool_window& window, A* out,
              std::uint8_t* taps, muster::device_stream_ref stream) {
  over_cells(stream, images * to.height * to.width, to.channels,
             largest<A>{in, out, taps, from, to, window.kernel, window.stride, window.padding});
}

template <class A>
void max_pool_backward(const A* slope, const std::uint8_t* taps, std::size_t images, const extent& from,
                       const extent& to, const pool_window& window, A* gradient, bool adds,
                       muster::device_stream_ref stream) {
  over_cells(stream, images * from.height * from.width, from.channels,
             unpooled<A>{slope, taps, gradient, from, to, window.kernel, window.stride, window.padding, adds});
}

template <class A>
void average_pool(const A* in, std::size_t images, std::size_t pixels, std::size_t columns, A* out,
                  muster::device_stream_ref stream) {
  over_cells(stream, images, columns, averaged<A>{in, out, pixels, columns});
}

template <class A>
void average_pool_backward(const A* slope, std::size_t images, std::size_t pixels, std::size_t columns, A* gradient,
                           bool adds, muster::device_stream_ref stream) {
  over_cells(stream, images * pixels, columns, spread<A>{slope, gradient, pixels, columns, adds});
}

#define NN_INSTANTIATE(A)                                                                                            \
  template void pad_shortcut(const A*, std::size_t, const extent&, const extent&, std::size_t, A*,                   \
                             muster::device_stream_ref);                                                             \
  template void pad_shortcut_backward(const A*, std::size_t, const extent&, const extent&, std::size_t, A*, bool,    \
                                      muster::device_stream_ref);                                                    \
  template void max_pool(const A*, std::size_t, const extent&, const extent&, const pool_window&, A*, std::uint8_t*, \
                         muster::device_stream_ref);                                                                 \
  template void max_pool_backward(const A*, const std::uint8_t*, std::size_t, const extent&, const extent&,          \
                                  const pool_window&, A*, bool, muster::device_stream_ref);                          \
  template void average_pool(const A*, std::size_t, std::size_t, std::size_t, A*, muster::device_stream_ref);        \
  template void average_pool_backward(const A*, std::size_t, std::size_t, std::size_t, A*, bool,                     \
                                      muster::device_stream_ref);
NN_INSTANTIATE(float)
NN_INSTANTIATE(muster::bfloat16)
#undef NN_INSTANTIATE

}  // namespace nn::device
