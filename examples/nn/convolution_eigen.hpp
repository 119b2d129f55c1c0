// Convolution as a product of matrices: a patch of the image for each output pixel, times the weights.
#pragma once

#include <vector>

#include "convolution.hpp"

namespace nn {

/// A convolution by im2col (Chellapilla, Puri and Simard 2006) over several images a product, computed with Eigen.
/// Every build has it.
template <class T>
class eigen_convolution final : public convolution<T> {
 public:
  explicit eigen_convolution(const convolution_shape& shape);

  [[nodiscard]] std::size_t block() const noexcept override { return block_; }
  [[nodiscard]] image_view<T> input(std::size_t k) noexcept override;
  [[nodiscard]] image_view<T> slope(std::size_t k) noexcept override;
  void begin(std::span<const T> weights) override { weights_ = weights; }
  void forward(std::size_t images, const T* bias, T* out) override;
  void backward_data(std::size_t images, T* in, bool add) override;
  void backward_weights(std::size_t images, const T* slopes, T* weights) override;

 private:
  /// Calls run(patch, pixel, elements) for each kernel row that overlaps an image, with the offset of its taps
  /// in patches_ and in the image.
  template <class Run>
  void over_patches(std::size_t images, const Run& run) const;
  void gather(std::size_t images);

  std::size_t block_;
  std::vector<T> input_, slope_, patches_;
  std::span<const T> weights_;
};

}  // namespace nn
