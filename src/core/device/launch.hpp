// A loop on a device. nvcc makes a kernel of it; where the sources are compiled without it, for the test double, it is
// a function that the stream calls. What it is given are functors whose operator() is constexpr, which nvcc takes for
// device code too (--expt-relaxed-constexpr).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include <muster/core/device/stream.hpp>

#include "check.hpp"

namespace muster::inline v0::detail {

#ifdef __CUDACC__

inline constexpr unsigned threads_a_block = 256;
/// Enough to fill any device there is; each thread goes on for as long as there is something to do.
inline constexpr std::size_t most_blocks = 16384;

inline unsigned blocks_for(std::size_t size) {
  const std::size_t blocks = (size + threads_a_block - 1) / threads_a_block;
  return static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks);
}

template <class F>
__global__ void run_for_each(std::size_t size, F f) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < size; i += stride) f(i);
}

/// f(i) for each i below `size`, in any order, at once.
template <class F>
void for_each(device_stream_ref stream, std::size_t size, F f) {
  if (size == 0) return;
  run_for_each<<<blocks_for(size), threads_a_block, 0, stream.handle>>>(size, f);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

#else

template <class F>
void call_on_stream(device_stream_ref stream, F f) {
  auto held = std::make_unique<F>(f);
  check_cuda(cudaLaunchHostFunc(
                 stream.handle,
                 [](void* given) {
                   const std::unique_ptr<F> mine(static_cast<F*>(given));
                   (*mine)();
                 },
                 held.get()),
             "cudaLaunchHostFunc");
  (void)held.release();  // the stream's now
}

template <class F>
void for_each(device_stream_ref stream, std::size_t size, F f) {
  call_on_stream(stream, [=] {
    for (std::size_t i = 0; i < size; ++i) f(i);
  });
}

#endif

}  // namespace muster::inline v0::detail
