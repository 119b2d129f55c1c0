#include "convolution_cudnn.hpp"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <muster/core/device/memory.hpp>
#include <muster/core/error.hpp>
#include <muster/core/float16.hpp>

namespace nn::device {
namespace {

void check(cudnnStatus_t answer, const char* call) {
  if (answer == CUDNN_STATUS_SUCCESS) return;
  throw muster::error(muster::error_kind::other, std::string(call) + " failed (cuDNN says: " +
                                                     cudnnGetErrorString(answer) + "); look at nvidia-smi");
}

/// An owner of a cuDNN descriptor.
template <class T, cudnnStatus_t (*Make)(T*), cudnnStatus_t (*End)(T)>
class owned {
 public:
  owned() { check(Make(&held_), "making a description for cuDNN"); }
  owned(const owned&) = delete;
  owned& operator=(const owned&) = delete;
  ~owned() { (void)End(held_); }
  operator T() const noexcept { return held_; }  // NOLINT: implicit, so that it is used as the descriptor that it owns

 private:
  T held_{};
};
using tensor = owned<cudnnTensorDescriptor_t, cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor>;
using filter = owned<cudnnFilterDescriptor_t, cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor>;
using kernel = owned<cudnnConvolutionDescriptor_t, cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor>;
using library = owned<cudnnHandle_t, cudnnCreate, cudnnDestroy>;

template <class A>
constexpr cudnnDataType_t type_of = std::is_same_v<A, float> ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;

/// The descriptor of a convolution, with the math type of a cuDNN algorithm.
struct way_kernel {
  kernel held;
  way_kernel(const convolution_shape& shape, cudnnMathType_t math) {
    const auto padding = static_cast<int>(shape.padding), stride = static_cast<int>(shape.stride);
    check(cudnnSetConvolution2dDescriptor(held, padding, padding, stride, stride, 1, 1, CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT),
          "cudnnSetConvolution2dDescriptor");
    check(cudnnSetConvolutionMathType(held, math), "cudnnSetConvolutionMathType");
  }
};

constexpr std::size_t workspace_bytes = std::size_t{256} << 20;
constexpr std::size_t most_ways = 16;

/// Measures cuDNN's algorithms, and returns the fastest that is deterministic and fits the workspace. Sets the math
/// type of `chosen` to the type of this algorithm.
template <class Found, class Find>
auto fastest(const way_kernel& chosen, const char* operation, const Find& find) {
  std::array<Found, most_ways> tried{};
  int count = 0;
  check(find(&count, tried.data()), operation);
  for (int k = 0; k < count; ++k) {  // In the order of their times.
    const Found& candidate = tried[static_cast<std::size_t>(k)];
    if (candidate.status != CUDNN_STATUS_SUCCESS || candidate.determinism != CUDNN_DETERMINISTIC ||
        candidate.memory > workspace_bytes)
      continue;
    check(cudnnSetConvolutionMathType(chosen.held, candidate.mathType), "cudnnSetConvolutionMathType");
    return candidate.algo;
  }
  throw muster::error(muster::error_kind::other, std::string("cuDNN has no way of ") + operation +
                                                     " that gives the same bits each time (" + std::to_string(count) +
                                                     " were tried); use another --precision");
}

}  // namespace

template <class A>
struct cudnn_convolutions<A>::state {
  library handle;
  muster::device_buffer<char> workspace{workspace_bytes};
  cudnnMathType_t math;
};

namespace {

template <class A, class State>
class by_cudnn final : public convolver<A> {
 public:
  by_cudnn(const convolution_shape& shape, std::shared_ptr<State> of) : shape_(shape), of_(std::move(of)) {
    check(cudnnSetFilter4dDescriptor(weights_, type_of<A>, CUDNN_TENSOR_NHWC, static_cast<int>(shape.out_channels),
                                     static_cast<int>(shape.in.channels), static_cast<int>(shape.kernel),
                                     static_cast<int>(shape.kernel)),
          "cudnnSetFilter4dDescriptor");
  }

  void prepare(std::size_t images, A* in, const packed_weights<A>& weights, A* out, A* in_gradient,
               A* weights_gradient) override {
    if (ways_.contains(images)) return;
    auto& added = ways_[images];
    added = std::make_unique<ways>(shape_, of_->math);
    describe(added->in, images, shape_.in);
    describe(added->out, images, shape_.out());
    const way_kernel tried(shape_, of_->math);
    added->forward = fastest<cudnnConvolutionFwdAlgoPerf_t>(
        added->of_forward, "convolving", [&](int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
          return cudnnFindConvolutionForwardAlgorithmEx(of_->handle, added->in, in, weights_, weights.by_out,
                                                        tried.held, added->out, out, most_ways, count, found, work(),
                                                        workspace_bytes);
        });
    added->weights = fastest<cudnnConvolutionBwdFilterAlgoPerf_t>(
        added->of_weights, "finding the gradient of weights",
        [&](int* count, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
          return cudnnFindConvolutionBackwardFilterAlgorithmEx(of_->handle, added->in, in, added->out, out, tried.held,
                                                               weights_, weights_gradient, most_ways, count, found,
                                                               work(), workspace_bytes);
        });
    if (in_gradient == nullptr) return;
    added->data = fastest<cudnnConvolutionBwdDataAlgoPerf_t>(
        added->of_data, "finding the gradient of images", [&](int* count, cudnnConvolutionBwdDataAlgoPerf_t* found) {
          return cudnnFindConvolutionBackwardDataAlgorithmEx(of_->handle, weights_, weights.by_out, added->out, out,
                                                             tried.held, added->in, in_gradient, most_ways, count,
                                                             found, work(), workspace_bytes);
        });
  }

  void forward(std::size_t images, const A* in, const packed_weights<A>& weights, A* out) override {
    const ways& by = *ways_.at(images);
    check(cudnnConvolutionForward(of_->handle, &one, by.in, in, weights_, weights.by_out, by.of_forward.held,
                                  by.forward, work(), workspace_bytes, &zero, by.out, out),
          "cudnnConvolutionForward");
  }
  void backward_data(std::size_t images, const A* slope, const packed_weights<A>& weights, A* gradient,
                     bool adds) override {
    const ways& by = *ways_.at(images);
    check(cudnnConvolutionBackwardData(of_->handle, &one, weights_, weights.by_out, by.out, slope, by.of_data.held,
                                       by.data, work(), workspace_bytes, adds ? &one : &zero, by.in, gradient),
          "cudnnConvolutionBackwardData");
  }
  void backward_weights(std::size_t images, const A* in, const A* slope, A* gradient) override {
    const ways& by = *ways_.at(images);
    check(cudnnConvolutionBackwardFilter(of_->handle, &one, by.in, in, by.out, slope, by.of_weights.held, by.weights,
                                         work(), workspace_bytes, &zero, weights_, gradient),
          "cudnnConvolutionBackwardFilter");
  }

 private:
  /// The algorithms for a number of images.
  struct ways {
    ways(const convolution_shape& shape, cudnnMathType_t math)
        : of_forward(shape, math), of_data(shape, math), of_weights(shape, math) {}
    tensor in, out;
    way_kernel of_forward, of_data, of_weights;
    cudnnConvolutionFwdAlgo_t forward{};
    cudnnConvolutionBwdDataAlgo_t data{};
    cudnnConvolutionBwdFilterAlgo_t weights{};
  };

  static void describe(const tensor& to, std::size_t images, const extent& shape) {
    check(cudnnSetTensor4dDescriptor(to, CUDNN_TENSOR_NHWC, type_of<A>, static_cast<int>(images),
                                     static_cast<int>(shape.channels), static_cast<int>(shape.height),
                                     static_cast<int>(shape.width)),
          "cudnnSetTensor4dDescriptor");
  }
  [[nodiscard]] void* work() const { return of_->workspace.span().data(); }

  static constexpr float one = 1, zero = 0;
  convolution_shape shape_;
  std::shared_ptr<State> of_;
  filter weights_;
  std::map<std::size_t, std::unique_ptr<ways>> ways_;
};

}  // namespace

template <class A>
cudnn_convolutions<A>::cudnn_convolutions(muster::device_stream_ref stream, multiplication precision)
    : state_(std::make_shared<state>()) {
  check(cudnnSetStream(state_->handle, stream.handle), "cudnnSetStream");
  state_->math = !std::is_same_v<A, float>           ? CUDNN_TENSOR_OP_MATH
                 : precision == multiplication::tf32 ? CUDNN_DEFAULT_MATH
                                                     : CUDNN_FMA_MATH;
}
template <class A>
cudnn_convolutions<A>::~cudnn_convolutions() = default;

template <class A>
std::unique_ptr<convolver<A>> cudnn_convolutions<A>::make(const convolution_shape& shape) {
  return std::make_unique<by_cudnn<A, state>>(shape, state_);
}

template class cudnn_convolutions<float>;
template class cudnn_convolutions<muster::bfloat16>;

}  // namespace nn::device
