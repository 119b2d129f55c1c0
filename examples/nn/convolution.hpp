// The interface of a convolution and the choice among several implementations.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <muster/core/buffer.hpp>

#include "activation.hpp"
#include "kernels.hpp"

namespace nn {

/// The shape of a convolution with a square kernel over an image padded with zeros.
struct convolution_shape {
  extent in;
  std::size_t out_channels = 1;
  std::size_t kernel = 3;
  std::size_t stride = 1;
  std::size_t padding = 1;

  [[nodiscard]] extent out() const noexcept {
    const auto cut = [&](std::size_t side) { return (side + 2 * padding - kernel) / stride + 1; };
    return {cut(in.height), cut(in.width), out_channels};
  }
  /// Returns the number of elements of the weights {kernel, kernel, in.channels, out_channels}, row-major.
  [[nodiscard]] std::size_t weights() const noexcept { return kernel * kernel * in.channels * out_channels; }
  /// Returns the floating-point operations for one pass over an image.
  [[nodiscard]] double operations() const noexcept {
    return 2.0 * static_cast<double>(weights()) * static_cast<double>(out().height * out().width);
  }
};

/// An implementation of convolution. It processes at most `block()` images at a time and owns the memory of the input:
/// the caller writes images to input(k), or the gradients of the outputs to slope(k), and then calls the pass that it
/// needs. Outputs are dense and adjacent in memory. Not thread safe.
template <class T>
class convolution {
 public:
  explicit convolution(const convolution_shape& shape) : shape_(shape) {}
  virtual ~convolution() = default;
  convolution(const convolution&) = delete;

  [[nodiscard]] const convolution_shape& shape() const noexcept { return shape_; }
  [[nodiscard]] virtual std::size_t block() const noexcept = 0;
  [[nodiscard]] virtual image_view<T> input(std::size_t k) noexcept = 0;
  [[nodiscard]] virtual image_view<T> slope(std::size_t k) noexcept = 0;

  /// Sets the weights for the following calls. The weights must not change until the last call.
  virtual void begin(std::span<const T> weights) = 0;
  /// Computes the outputs of `images` images. `bias` has an element for each output channel, or is null.
  virtual void forward(std::size_t images, const T* bias, T* out) = 0;
  /// Computes the gradient of the input from slope(), and sets `in` or adds to it if `add`.
  virtual void backward_data(std::size_t images, T* in, bool add) = 0;
  /// Adds the gradient of the weights, computed from input() and `slopes`, to `weights`. `slopes` are dense and
  /// adjacent in memory; null selects slope().
  virtual void backward_weights(std::size_t images, const T* slopes, T* weights) = 0;

 private:
  convolution_shape shape_;
};

/// Scratch memory that a thread's convolutions share, one after the other, so that it stays in the thread's
/// cache.
template <class T>
struct workspace {
  muster::buffer<T> operands, products;  ///< Operands of a product, and its result.
  /// Packed panels of transformed weights, and the reversed taps from which the panels are packed.
  muster::buffer<T> panels, turned;
  muster::buffer<T> sums;           ///< Sums of weight gradients; all zero between two calls.
  const void* panels_of = nullptr;  ///< Convolution for which the panels were packed last.

  static void reserve(muster::buffer<T>& memory, std::size_t size) {
    if (memory.size() < size) memory = muster::buffer<T>(size);
  }
};

/// Returns a convolution by name: "winograd" (muster's own kernels, with fewer multiplications where this is faster,
/// and direct elsewhere), "direct", or "eigen" (im2col and a matrix product). Throws muster::configuration_error
/// for any other name. A thread's convolutions share `work`.
template <class T>
std::unique_ptr<convolution<T>> make_convolution(
    std::string_view backend, const convolution_shape& shape, const kernel_set<T>& kernels,
    const std::shared_ptr<workspace<T>>& work = std::make_shared<workspace<T>>());

/// Returns the names that make_convolution accepts.
std::vector<std::string_view> convolution_names();

}  // namespace nn
