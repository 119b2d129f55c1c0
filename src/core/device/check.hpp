// CUDA's answers as errors.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Throws muster::error with CUDA's own text unless `code` is cudaSuccess.
inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // or the next call would report this one
  throw error(error_kind::other,
              std::string(call) + " failed (CUDA says: " + cudaGetErrorString(code) + "); look at nvidia-smi");
}

}}}  // namespace muster::v0::detail
