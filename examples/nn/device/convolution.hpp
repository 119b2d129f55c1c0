// Convolutions of whole batches on a device.
#pragma once

#include <cstddef>
#include <memory>

#include <muster/core/device/stream.hpp>

#include "../convolution.hpp"

namespace nn::device {

/// How floats are multiplied: as they are, or rounded to 10 bits of mantissa, which matrix units take (TF32).
enum class multiplication { float32, tf32 };

/// The weights of a convolution, twice: a row of kernel x kernel x in-channels for each out-channel, and one of kernel
/// x kernel x out-channels for each in-channel.
template <class A>
struct packed_weights {
  A* by_out = nullptr;
  A* by_in = nullptr;
};

/// A convolution of activations of type A. Images are NHWC; gradients of weights have a row for each out-channel. What
/// it does is put on its stream.
template <class A>
class convolver {
 public:
  convolver() = default;
  convolver(const convolver&) = delete;
  convolver& operator=(const convolver&) = delete;
  virtual ~convolver() = default;

  /// Before the first calls with so many images; may try what is fastest, and write to all of these.
  virtual void prepare(std::size_t images, A* in, const packed_weights<A>& weights, A* out, A* in_gradient,
                       A* weights_gradient) = 0;
  virtual void forward(std::size_t images, const A* in, const packed_weights<A>& weights, A* out) = 0;
  /// Sets the gradient of what went in, or adds to it.
  virtual void backward_data(std::size_t images, const A* slope, const packed_weights<A>& weights, A* gradient,
                             bool adds) = 0;
  /// Sets the gradient of the weights.
  virtual void backward_weights(std::size_t images, const A* in, const A* slope, A* gradient) = 0;
};

template <class A>
class cudnn_convolutions;

/// Makes the convolvers of a network with multiples of 16 channels: for few channels by tiles of ours
/// (convolution_tiles.hpp), for many by cuDNN where it was built with it (NN_CUDNN). Lives as long as they do.
template <class A>
class convolutions {
 public:
  convolutions(muster::device_stream_ref stream, multiplication how);
  ~convolutions();
  /// Throws muster::configuration_error for a shape that nothing here computes.
  [[nodiscard]] std::unique_ptr<convolver<A>> make(const convolution_shape& shape);

 private:
  muster::device_stream_ref stream_;
  multiplication how_;
  std::unique_ptr<cudnn_convolutions<A>> cudnn_;
};

}  // namespace nn::device
