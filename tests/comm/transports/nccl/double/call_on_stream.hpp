// TEST DOUBLE: the replacement for a kernel: a function that a stream calls.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include <muster/core/device/stream.hpp>
#include <muster/core/error.hpp>

namespace nccl_double {

/// Calls `f` once, when the stream reaches it.
template <class F>
void call_on_stream(muster::device_stream_ref stream, F f) {
  auto function_copy = std::make_unique<F>(f);
  const auto result = cudaLaunchHostFunc(
      stream.handle,
      [](void* pointer) {
        const std::unique_ptr<F> function(static_cast<F*>(pointer));
        (*function)();
      },
      function_copy.get());
  if (result != cudaSuccess) {
    throw muster::error(muster::error_kind::other,
                        "cudaLaunchHostFunc failed (CUDA says: " + std::string(cudaGetErrorString(result)) + ")");
  }
  (void)function_copy.release();  // owned by the stream
}

}  // namespace nccl_double
