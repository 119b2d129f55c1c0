#include "convolution_eigen.hpp"

#include <algorithm>

#include "products.hpp"

namespace nn {
namespace {

std::size_t patch_size(const convolution_shape& shape) { return shape.kernel * shape.kernel * shape.in.channels; }

}  // namespace

template <class T>
eigen_convolution<T>::eigen_convolution(const convolution_shape& shape) : convolution<T>(shape) {
  const extent out = shape.out();
  constexpr std::size_t pixels_at_once = 1024;
  block_ = std::max<std::size_t>(1, pixels_at_once / (out.height * out.width));
  input_.resize(block_ * shape.in.size());
  slope_.resize(block_ * out.size());
  patches_.resize(block_ * out.height * out.width * patch_size(shape));
}

template <class T>
image_view<T> eigen_convolution<T>::input(std::size_t k) noexcept {
  const extent& in = this->shape().in;
  return {input_.data() + k * in.size(), in.height, in.width, in.channels, in.width * in.channels};
}

template <class T>
image_view<T> eigen_convolution<T>::slope(std::size_t k) noexcept {
  const extent out = this->shape().out();
  return {slope_.data() + k * out.size(), out.height, out.width, out.channels, out.width * out.channels};
}

template <class T>
template <class Run>
void eigen_convolution<T>::over_patches(std::size_t images, const Run& run) const {
  const auto& shape = this->shape();
  const extent out = shape.out();
  const std::size_t row = shape.kernel * shape.in.channels;
  std::size_t patch = 0;
  for (std::size_t image = 0; image < images; ++image) {
    for (std::size_t y = 0; y < out.height; ++y) {
      for (std::size_t x = 0; x < out.width; ++x) {
        const std::size_t left = x * shape.stride;  // Left edge in the padded image.
        const std::size_t first = left < shape.padding ? shape.padding - left : 0;
        const std::size_t last = std::min(shape.kernel, shape.in.width + shape.padding - left);
        for (std::size_t ky = 0; ky < shape.kernel; ++ky, patch += row) {
          const std::size_t line = y * shape.stride + ky;
          if (line < shape.padding || line >= shape.in.height + shape.padding || first >= last) continue;
          const std::size_t pixel =
              image * shape.in.size() +
              ((line - shape.padding) * shape.in.width + left + first - shape.padding) * shape.in.channels;
          run(patch + first * shape.in.channels, pixel, (last - first) * shape.in.channels);
        }
      }
    }
  }
}

template <class T>
void eigen_convolution<T>::gather(std::size_t images) {
  std::fill(patches_.begin(), patches_.end(), T{0});
  over_patches(images, [&](std::size_t patch, std::size_t pixel, std::size_t elements) {
    std::copy_n(input_.data() + pixel, elements, patches_.data() + patch);
  });
}

template <class T>
void eigen_convolution<T>::forward(std::size_t images, const T* bias, T* out) {
  const auto& shape = this->shape();
  const std::size_t pixels = images * shape.out().height * shape.out().width;
  gather(images);
  multiply(patches_.data(), weights_.data(), out, pixels, patch_size(shape), shape.out_channels);
  if (bias != nullptr) add_to_rows(bias, out, pixels, shape.out_channels);
}

template <class T>
void eigen_convolution<T>::backward_data(std::size_t images, T* in, bool add) {
  const auto& shape = this->shape();
  const std::size_t pixels = images * shape.out().height * shape.out().width;
  multiply_transposed(slope_.data(), weights_.data(), patches_.data(), pixels, shape.out_channels, patch_size(shape));
  if (!add) std::fill_n(in, images * shape.in.size(), T{0});
  over_patches(images, [&](std::size_t patch, std::size_t pixel, std::size_t elements) {
    for (std::size_t i = 0; i < elements; ++i) in[pixel + i] += patches_[patch + i];
  });
}

template <class T>
void eigen_convolution<T>::backward_weights(std::size_t images, const T* slopes, T* weights) {
  const auto& shape = this->shape();
  const std::size_t pixels = images * shape.out().height * shape.out().width;
  gather(images);
  add_transposed_multiply(patches_.data(), slopes != nullptr ? slopes : slope_.data(), weights, patch_size(shape),
                          pixels, shape.out_channels);
}

template class eigen_convolution<float>;
template class eigen_convolution<double>;

}  // namespace nn
