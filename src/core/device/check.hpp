// Conversion of CUDA's error codes to exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include <muster/core/error.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Throws muster::error with CUDA's own text unless `code` is cudaSuccess.
inline void check_cuda(cudaError_t code, const char* function) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // clears the error, which the next call would report otherwise
  throw error(error_kind::other,
              std::string(function) + " failed (CUDA: " + cudaGetErrorString(code) + "); look at nvidia-smi");
}

}}}  // namespace muster::v0::detail
