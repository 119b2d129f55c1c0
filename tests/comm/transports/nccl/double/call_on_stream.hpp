// TEST DOUBLE: what stands for a kernel, a function that a stream calls.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include <muster/core/device/stream.hpp>
#include <muster/core/error.hpp>

namespace nccl_double {

/// `f` is called, once, when the stream has come to it.
template <class F>
void call_on_stream(muster::device_stream_ref stream, F f) {
  auto held = std::make_unique<F>(f);
  const auto answer = cudaLaunchHostFunc(
      stream.handle,
      [](void* given) {
        const std::unique_ptr<F> mine(static_cast<F*>(given));
        (*mine)();
      },
      held.get());
  if (answer != cudaSuccess) {
    throw muster::error(muster::error_kind::other,
                        "cudaLaunchHostFunc failed (CUDA says: " + std::string(cudaGetErrorString(answer)) + ")");
  }
  (void)held.release();  // the stream's now
}

}  // namespace nccl_double
