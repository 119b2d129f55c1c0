// Convolutions by NVIDIA's cuDNN.
#pragma once

#include <memory>

#include "convolution.hpp"

namespace nn::device {

/// A factory of convolvers that share a handle and a workspace of 256 MiB. For each number of images, each convolver
/// measures which of cuDNN's deterministic algorithms is the fastest.
template <class A>
class cudnn_convolutions {
 public:
  cudnn_convolutions(muster::device_stream_ref stream, multiplication precision);
  ~cudnn_convolutions();
  [[nodiscard]] std::unique_ptr<convolver<A>> make(const convolution_shape& shape);

 private:
  struct state;
  std::shared_ptr<state> state_;
};

}  // namespace nn::device
