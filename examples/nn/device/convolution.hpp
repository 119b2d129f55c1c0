// Convolutions of whole batches on a device.
#pragma once

#include <cstddef>
#include <memory>

#include <muster/core/device/stream.hpp>

#include "../convolution.hpp"

namespace nn::device {

/// The precision of products of floats: full, or rounded to 10 bits of mantissa for matrix units (TF32).
enum class multiplication { float32, tf32 };

/// The weights of a convolution, stored twice: a row of kernel x kernel x in-channels for each out-channel, and a row
/// of kernel x kernel x out-channels for each in-channel.
template <class A>
struct packed_weights {
  A* by_out = nullptr;
  A* by_in = nullptr;
};

/// A convolution of activations of type A. Images are NHWC; gradients of weights have a row for each out-channel. All
/// functions put their work on the convolution's stream.
template <class A>
class convolver {
 public:
  convolver() = default;
  convolver(const convolver&) = delete;
  convolver& operator=(const convolver&) = delete;
  virtual ~convolver() = default;

  /// Prepares for a number of images, before the first call with this number. May try which implementation is the
  /// fastest, and may write to all arrays.
  virtual void prepare(std::size_t images, A* in, const packed_weights<A>& weights, A* out, A* in_gradient,
                       A* weights_gradient) = 0;
  virtual void forward(std::size_t images, const A* in, const packed_weights<A>& weights, A* out) = 0;
  /// Sets the gradient of the input, or adds to it.
  virtual void backward_data(std::size_t images, const A* slope, const packed_weights<A>& weights, A* gradient,
                             bool adds) = 0;
  /// Sets the gradient of the weights.
  virtual void backward_weights(std::size_t images, const A* in, const A* slope, A* gradient) = 0;
};

template <class A>
class cudnn_convolutions;

/// A factory of convolvers for a network with multiples of 16 channels. Few channels use this library's tiles
/// (convolution_tiles.hpp). Many channels use cuDNN if it was built in (NN_CUDNN). Must outlive its convolvers.
template <class A>
class convolutions {
 public:
  convolutions(muster::device_stream_ref stream, multiplication precision);
  ~convolutions();
  /// Returns a convolver for the shape. Throws muster::configuration_error for an unsupported shape.
  [[nodiscard]] std::unique_ptr<convolver<A>> make(const convolution_shape& shape);

 private:
  muster::device_stream_ref stream_;
  multiplication precision_;
  std::unique_ptr<cudnn_convolutions<A>> cudnn_;
};

}  // namespace nn::device
