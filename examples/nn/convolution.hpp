// One convolution behind one interface, with several ways of doing it.
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

/// A square kernel over an image with zeros around it.
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
  /// Of a weight: {kernel, kernel, in.channels, out_channels}, row-major.
  [[nodiscard]] std::size_t weights() const noexcept { return kernel * kernel * in.channels * out_channels; }
  /// Floating-point operations of one pass over an image.
  [[nodiscard]] double operations() const noexcept {
    return 2.0 * static_cast<double>(weights()) * static_cast<double>(out().height * out().width);
  }
};

/// A way of convolving. It works on a few images at a time, `block()` at most, and has memory for what goes in: the
/// caller writes images to input(k), or the gradients of the outputs to slope(k), and then calls what it wants done.
/// Outputs are dense and one behind another. Not thread safe.
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

  /// The weights of the calls that follow; they must stay as they are.
  virtual void begin(std::span<const T> weights) = 0;
  /// `bias`, one for each output channel, may be null.
  virtual void forward(std::size_t images, const T* bias, T* out) = 0;
  /// From slope() to the gradient of the input, which is set or added to.
  virtual void backward_data(std::size_t images, T* in, bool add) = 0;
  /// From input() and `slopes`, which are dense and one behind another, or slope() if that is null; adds to the
  /// gradient of the weights.
  virtual void backward_weights(std::size_t images, const T* slopes, T* weights) = 0;

 private:
  convolution_shape shape_;
};

/// What convolutions of one thread work with one after the other, so that it stays in that thread's cache.
template <class T>
struct workspace {
  muster::buffer<T> taken, made;     ///< what is multiplied, and what comes of it
  muster::buffer<T> panels, turned;  ///< of transformed weights; taps turned around on their way there
  muster::buffer<T> sums;            ///< of gradients of weights; zeros between two calls
  const void* panels_of = nullptr;   ///< what the panels were made for last

  static void reserve(muster::buffer<T>& memory, std::size_t size) {
    if (memory.size() < size) memory = muster::buffer<T>(size);
  }
};

/// "winograd" (muster's own kernels, with fewer multiplications where that pays; direct elsewhere), "direct", "eigen"
/// (im2col and a product), "onednn" (float only, if it was built in). Throws muster::configuration_error for another.
/// `work` is shared with others of the same thread.
template <class T>
std::unique_ptr<convolution<T>> make_convolution(
    std::string_view backend, const convolution_shape& shape, const kernel_set<T>& kernels,
    const std::shared_ptr<workspace<T>>& work = std::make_shared<workspace<T>>());

/// Those that this build has.
std::vector<std::string_view> convolution_names();

}  // namespace nn
