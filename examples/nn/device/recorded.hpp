// Work on a stream that is recorded once and started many times.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <tuple>
#include <type_traits>

#include "launch.hpp"

namespace nn::device {

/// A recorder of work on a stream, kernels and copies of pinned memory, as a CUDA graph. One call starts the whole
/// graph instead of hundreds of kernels. Addresses and numbers in the graph keep the values that they had during
/// recording.
class recorded_work {
 public:
  /// Number of images, training, and scale of the loss.
  using key = std::tuple<std::size_t, bool, double>;

#ifdef MUSTER_TEST_DOUBLE  // The test double has no graphs.
  template <class Work>
  void run(const key&, muster::device_stream_ref, const Work& work) {
    work();
  }
  void clear() noexcept {}
#else
  /// Runs the recorded work. Calls `work` only the first time, to record it.
  template <class Work>
  void run(const key& which, muster::device_stream_ref stream, const Work& work) {
    auto& graph = graphs_[which];
    if (graph == nullptr) {
      cudaGraph_t recorded = nullptr;
      check_cuda(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
      try {
        work();
      } catch (...) {
        if (cudaStreamEndCapture(stream.handle, &recorded) == cudaSuccess) (void)cudaGraphDestroy(recorded);
        throw;
      }
      check_cuda(cudaStreamEndCapture(stream.handle, &recorded), "cudaStreamEndCapture");
      cudaGraphExec_t instance = nullptr;
      const auto answer = cudaGraphInstantiate(&instance, recorded, 0);
      (void)cudaGraphDestroy(recorded);
      check_cuda(answer, "cudaGraphInstantiate");
      graph.reset(instance);
    }
    check_cuda(cudaGraphLaunch(graph.get(), stream.handle), "cudaGraphLaunch");
  }
  /// Discards all graphs, for instance because their memory was freed.
  void clear() noexcept { graphs_.clear(); }

 private:
  struct release {
    void operator()(cudaGraphExec_t graph) const noexcept { (void)cudaGraphExecDestroy(graph); }
  };
  std::map<key, std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, release> > graphs_;
#endif
};

}  // namespace nn::device
