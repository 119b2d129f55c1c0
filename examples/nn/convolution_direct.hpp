// Convolution without a matrix of patches: the taps of a row and their channels are already contiguous in memory.
#pragma once

#include <vector>

#include <muster/core/buffer.hpp>

#include "convolution.hpp"
#include "panels.hpp"
#include "tap_groups.hpp"

namespace nn {

/// A direct convolution. Images are copied into memory with zeros around them, so that no tap needs a bounds check.
/// Each pass works as follows.
///   - forward: for each output pixel and each row of the kernel, a run of kernel * channels inputs is multiplied by a
///     panel of weights; six pixels times two vectors of output channels stay in registers (with AVX2), so that each
///     number that is loaded feeds at least two multiplications;
///   - backward data: the same on the gradient with reversed weights. With a stride s, the input pixels form s * s
///     classes by (y + padding) mod s and (x + padding) mod s, each with its own taps, so that nothing is multiplied by
///     zeros in between;
///   - backward weights: for each row of the kernel, six terms of a run times two vectors of output channels, summed
///     over the pixels.
/// Taps in the zero padding are skipped where this is faster. They are a large share of the taps in a small image.
template <class T>
class direct_convolution final : public convolution<T> {
 public:
  direct_convolution(const convolution_shape& shape, const kernel_set<T>& kernels);

  [[nodiscard]] std::size_t block() const noexcept override { return block_; }
  [[nodiscard]] image_view<T> input(std::size_t k) noexcept override;
  [[nodiscard]] image_view<T> slope(std::size_t k) noexcept override;
  void begin(std::span<const T> weights) override;
  void forward(std::size_t images, const T* bias, T* out) override;
  void backward_data(std::size_t images, T* in, bool add) override;
  void backward_weights(std::size_t images, const T* slopes, T* weights) override;

 private:
  /// A class of pixels that use the same taps of the kernel, except at the border.
  struct pixel_class {
    /// First tap of the class; the other taps follow in steps of the stride.
    std::size_t first_row = 0, first_column = 0;
    tap_axis rows, columns;
    std::vector<pixel_group> groups;  ///< Groups of pixels in all images of a block.
    muster::buffer<T> panels;
  };

  void make_classes();
  void choose_block();
  void place(pixel_class& pixels, const framed_images<T>& from, const extent& to);
  void multiply(const pixel_class& pixels, const framed_images<T>& from, std::size_t images, const T* start, T* out,
                const extent& to, bool add);
  void pack(pixel_class& taps);

  const kernel_set<T>* kernels_;
  std::size_t block_ = 1;
  framed_images<T> input_, slope_;
  pixel_class outputs_;
  std::vector<pixel_class> inputs_;
  std::span<const T> weights_;
  std::vector<T> bias_, zeros_;  // Arrays padded to whole vectors.
  bool turned_ = false;          // True if the panels of inputs_ were packed from weights_.
};

}  // namespace nn
