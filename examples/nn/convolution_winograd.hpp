// Convolution with 3 x 3 taps in a quarter of the multiplications.
#pragma once

#include <memory>
#include <vector>

#include <muster/core/buffer.hpp>

#include "convolution.hpp"
#include "panels.hpp"

namespace nn {

/// A convolution by Winograd's minimal filtering F(4 x 4, 3 x 3) (Lavin and Gray 2015,
/// https://arxiv.org/abs/1509.09308), stride 1. A tile of 4 x 4 outputs takes 36 multiplications for each pair of
/// channels instead of 144, in all three passes. The tiles of some images become 36 planes. Each plane is a matrix
/// product by the kernels of direct convolution, and sums over planes produce the outputs. Transformed weights are four
/// times as large as the weights. Therefore weights are transformed, and their gradients transformed back, in parts
/// that fit in the caches.
///
/// This is faster where there are enough channels that the products outweigh the sums, and enough pixels that the
/// products outweigh the transformation of the weights: see pays().
template <class T>
class winograd_convolution final : public convolution<T> {
 public:
  winograd_convolution(const convolution_shape& shape, const kernel_set<T>& kernels,
                       std::shared_ptr<workspace<T>> work);

  [[nodiscard]] static bool can(const convolution_shape& shape) noexcept {
    return shape.kernel == 3 && shape.stride == 1 && shape.padding <= 2;
  }
  [[nodiscard]] static bool pays(const convolution_shape& shape) noexcept {
    const extent out = shape.out();
    return can(shape) && shape.in.channels >= 16 && shape.out_channels >= 16 && out.height * out.width >= 16;
  }

  [[nodiscard]] std::size_t block() const noexcept override { return block_; }
  [[nodiscard]] image_view<T> input(std::size_t k) noexcept override { return forward_.from.view(k); }
  [[nodiscard]] image_view<T> slope(std::size_t k) noexcept override { return back_.from.view(k); }
  void begin(std::span<const T> weights) override;
  void forward(std::size_t images, const T* bias, T* out) override;
  void backward_data(std::size_t images, T* in, bool add) override;
  void backward_weights(std::size_t images, const T* slopes, T* weights) override;

 private:
  /// A convolution in one direction: from inputs to outputs, or back with reversed taps.
  struct direction {
    framed_images<T> from;
    extent to;
    std::vector<pixel_place> tiles;
    std::size_t group = 0;  // Number of columns whose panels are packed at a time.
  };

  void prepare(direction& way, std::size_t tiles);
  void make_panels(direction& way, std::size_t column, std::size_t columns);
  void convolve(direction& way, std::size_t images, const T* start, T* out, bool add);
  void take_inputs(const direction& way, std::size_t images, const extent& to);

  const kernel_set<T>* kernels_;
  std::size_t block_ = 1;
  direction forward_, back_;
  std::span<const T> weights_;  // Weights set by begin().
  std::size_t terms_ = 0;       // Number of input channels whose weight gradient is computed at a time.
  std::shared_ptr<workspace<T>> work_;
  std::vector<T> zeros_;  // Array padded to whole vectors.
};

}  // namespace nn
