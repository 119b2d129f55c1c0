#include "convolution.hpp"

#include <algorithm>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/float16.hpp>

#include "convolution_tiles.hpp"
#ifdef NN_CUDNN
#include "convolution_cudnn.hpp"
#else
namespace nn::device {
template <class A>
class cudnn_convolutions {};
}  // namespace nn::device
#endif

namespace nn::device {

template <class A>
convolutions<A>::convolutions(muster::device_stream_ref stream, multiplication precision)
    : stream_(stream), precision_(precision) {}
template <class A>
convolutions<A>::~convolutions() = default;

template <class A>
std::unique_ptr<convolver<A>> convolutions<A>::make(const convolution_shape& shape) {
  const std::size_t in = shape.in.channels, out = shape.out_channels;
  if (in % 16 != 0 || out % 16 != 0) {
    throw muster::configuration_error("a device does not convolve " + std::to_string(in) + " channels to " +
                                      std::to_string(out) + " (matrix units take multiples of 16); use --device cpu");
  }
#ifdef NN_CUDNN
  if (std::max(in, out) > 64) {  // cuDNN's tiles are full here, and faster than muster's tiles.
    if (cudnn_ == nullptr) cudnn_ = std::make_unique<cudnn_convolutions<A>>(stream_, precision_);
    return cudnn_->make(shape);
  }
#endif
  auto convolution_by_tiles = make_tiles<A>(shape, precision_, stream_);
  if (convolution_by_tiles != nullptr) return convolution_by_tiles;
  throw muster::configuration_error("a convolution of " + std::to_string(shape.kernel) + " x " +
                                    std::to_string(shape.kernel) + " taps and " + std::to_string(in) +
                                    " channels does not fit a device's shared memory; build with cuDNN");
}

template class convolutions<float>;
template class convolutions<muster::bfloat16>;

}  // namespace nn::device
