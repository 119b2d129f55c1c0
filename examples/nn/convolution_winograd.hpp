// Convolution with 3 x 3 taps in a quarter of the multiplications.
#pragma once

#include <vector>

#include <muster/core/buffer.hpp>

#include "convolution.hpp"
#include "panels.hpp"

namespace nn {

/// Winograd's minimal filtering F(4 x 4, 3 x 3) (Lavin and Gray 2015, https://arxiv.org/abs/1509.09308), stride 1: a
/// tile of 4 x 4 outputs takes 36 multiplications for each pair of channels instead of 144, in all three passes. Tiles
/// of some images become 36 planes, each plane is one product of matrices by the same kernels as direct convolution's,
/// and sums make outputs of them.
///
/// That pays where there are channels enough that the products outweigh the sums, and pixels enough that they outweigh
/// what the weights cost: see pays().
template <class T>
class winograd_convolution final : public convolution<T> {
 public:
  winograd_convolution(const convolution_shape& shape, const kernel_set<T>& kernels);

  [[nodiscard]] static bool can(const convolution_shape& shape) noexcept {
    return shape.kernel == 3 && shape.stride == 1 && shape.padding <= 2;
  }
  [[nodiscard]] static bool pays(const convolution_shape& shape) noexcept {
    const extent out = shape.out();
    return can(shape) && shape.in.channels >= 32 && shape.out_channels >= 32 && out.height * out.width >= 64;
  }

  [[nodiscard]] std::size_t block() const noexcept override { return block_; }
  [[nodiscard]] image_view<T> input(std::size_t k) noexcept override { return input_.view(k); }
  [[nodiscard]] image_view<T> slope(std::size_t k) noexcept override { return slope_.view(k); }
  void begin(std::span<const T> weights) override;
  void forward(std::size_t images, const T* bias, T* out) override;
  void backward_data(std::size_t images, T* in, bool add) override;
  void backward_weights(std::size_t images, const T* slopes, T* weights) override;
  void finish(T* weights) override;

 private:
  void convolve(framed_images<T>& from, std::size_t images, const muster::buffer<T>& panels, const T* start, T* out,
                const extent& to, bool add);
  void take_inputs(framed_images<T>& from, std::size_t images, const extent& to);

  const kernel_set<T>* kernels_;
  std::size_t block_ = 1;
  framed_images<T> input_, slope_;
  muster::buffer<T> taken_, made_;                   // planes of tiles: what is multiplied, and what comes of it
  std::span<const T> weights_;                       // those of begin()
  muster::buffer<T> turned_taps_;                    // of them
  muster::buffer<T> forward_, back_;                 // panels of planes of both
  muster::buffer<T> sums_;                           // planes of the gradient of the weights
  std::vector<pixel_place> to_outputs_, to_inputs_;  // of tiles
  std::vector<T> zeros_;                             // in whole vectors
  bool turned_ = false;                              // back_ is of weights_
};

}  // namespace nn
