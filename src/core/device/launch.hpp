// Loops on a device. nvcc compiles them to kernels. Where the sources are compiled without nvcc, for the test double,
// they are functions that the stream calls. Their arguments are lambdas with __device__, or functors with a constexpr
// operator(), which nvcc also accepts as device code (--expt-relaxed-constexpr).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <muster/core/device/stream.hpp>

#include "check.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Threads of a block, also on the host, since sums depend on this number.
inline constexpr unsigned block_threads = 256;
/// Number of elements that a thread reads or writes at once: 16 bytes of floats.
inline constexpr std::size_t pack_size = 4;

template <class T>
struct alignas(pack_size * sizeof(T)) pack {
  T values[pack_size];
};

#ifdef __CUDACC__

/// Maximum number of blocks, enough to fill any device. Each thread loops until all elements are processed.
inline constexpr std::size_t most_blocks = 16384;
/// Packs per array that a thread reads before it continues: the reads in flight must cover the memory latency, and
/// leave registers for other threads.
template <class... T>
inline constexpr std::size_t packs_at_once = sizeof...(T) > 2 ? 1 : 2;

template <std::size_t N, class T>
struct packs_of_thread {
  pack<std::remove_const_t<T>> packs[N];
};

template <std::size_t N, class T>
__device__ packs_of_thread<N, T> read(const T* array, std::size_t first, std::size_t stride, std::size_t end) {
  packs_of_thread<N, T> loaded;
  for (std::size_t j = 0; j < N; ++j) {
    const std::size_t i = first + j * stride;
    if (i < end) loaded.packs[j] = reinterpret_cast<const pack<std::remove_const_t<T>>*>(array)[i];
  }
  return loaded;
}
template <std::size_t N, class T>
__device__ void write(const packs_of_thread<N, T>& loaded, T* array, std::size_t first, std::size_t stride,
                      std::size_t end) {
  if constexpr (!std::is_const_v<T>) {
    for (std::size_t j = 0; j < N; ++j) {
      const std::size_t i = first + j * stride;
      if (i < end) reinterpret_cast<pack<T>*>(array)[i] = loaded.packs[j];
    }
  }
}

// The code also reads arrays that f only writes. The compiler removes a read that nothing depends on.
template <class F, class... T>
__global__ void run_for_each(std::size_t count, std::size_t packs, F f, T* __restrict__... arrays) {
  constexpr std::size_t at_once = packs_at_once<T...>;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * block_threads;
  const std::size_t me = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x;
  for (std::size_t i = me; i < packs; i += at_once * threads) {
    [&](packs_of_thread<at_once, T>... loaded) {
      for (std::size_t j = 0; j < at_once; ++j) {
        for (std::size_t k = 0; k < pack_size; ++k) f(loaded.packs[j].values[k]...);
      }
      (write<at_once, T>(loaded, arrays, i, threads, packs), ...);
    }(read<at_once, T>(arrays, i, threads, packs)...);
  }
  for (std::size_t i = pack_size * packs + me; i < count; i += threads) f(arrays[i]...);
}

/// Calls f(arrays[i]...) for each i below `count`, in any order and concurrently. f may change its non-const reference
/// parameters. The arrays must not overlap. If all arrays are aligned to a pack, each access processes a pack.
template <class F, class... T>
void for_each(device_stream_ref stream, std::size_t count, F f, T*... arrays) {
  if (count == 0) return;
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(arrays) % sizeof(pack<T>) == 0) && ...);
  const std::size_t packs = aligned ? count / pack_size : 0;
  const std::size_t per_block = block_threads * (aligned ? packs_at_once<T...> * pack_size : 1);
  const std::size_t blocks = (count + per_block - 1) / per_block;
  run_for_each<F, T...>
      <<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), block_threads, 0, stream.handle>>>(
          count, packs, f, arrays...);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

/// Replaces each element of `sums`, in all threads of the block, by the sum over the threads with the same number
/// modulo `To`: half of the threads adds the other half to itself, until `To` threads are left.
template <unsigned To, class T, unsigned N>
__device__ void sum_threads(T (&sums)[N]) {
  __shared__ T all[N][block_threads];
  const unsigned me = threadIdx.x;
  for (unsigned k = 0; k < N; ++k) all[k][me] = sums[k];
  for (unsigned half = block_threads / 2; half >= To; half /= 2) {
    __syncthreads();
    for (unsigned k = 0; k < N && me < half; ++k) all[k][me] += all[k][me + half];
  }
  __syncthreads();
  for (unsigned k = 0; k < N; ++k) sums[k] = all[k][me % To];
  __syncthreads();  // before the next sum
}

template <class F>
__global__ void run_sums(std::size_t count, std::size_t block_size, F value_of, double* sums) {
  constexpr std::size_t at_once = 8;
  const unsigned lane = threadIdx.x;
  const std::size_t first = blockIdx.x * block_size, end = count < first + block_size ? count : first + block_size;
  double sum[1] = {};
  for (std::size_t i = first + lane; i < end; i += at_once * block_threads) {
    double values[at_once];  // all values are read before the first is added
    for (std::size_t j = 0; j < at_once; ++j) {
      const std::size_t at = i + j * block_threads;
      values[j] = at < end ? value_of(at) : 0;
    }
    for (std::size_t j = 0; j < at_once; ++j) sum[0] += values[j];
  }
  sum_threads<1>(sum);
  if (lane == 0) sums[blockIdx.x] = sum[0];
}

/// Sets sums[k] to the sum of value_of(i) for all i in the k-th part of the range below `count`. Each of
/// `block_threads` threads adds every block_threads-th value, and sum_threads adds the threads' sums, so the order
/// depends on nothing else.
template <class F>
void sum_parts(device_stream_ref stream, std::size_t count, std::size_t block_size, F value_of, double* sums) {
  if (count == 0) return;
  run_sums<<<static_cast<unsigned>((count + block_size - 1) / block_size), block_threads, 0, stream.handle>>>(
      count, block_size, value_of, sums);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

/// Number of threads in a warp, and of warps in a block.
inline constexpr unsigned lanes = 32, warps = block_threads / lanes;
__device__ inline unsigned this_lane() { return threadIdx.x % lanes; }
__device__ inline unsigned this_warp() { return threadIdx.x / lanes; }

/// Replaces each element of `sums`, in all lanes, by its sum over the lanes of the warp.
template <unsigned N>
__device__ void sum_lanes(float (&sums)[N]) {
  for (unsigned k = 0; k < N; ++k)
    for (unsigned distance = lanes / 2; distance > 0; distance /= 2) sums[k] += __shfl_xor_sync(~0u, sums[k], distance);
}

// Runs at least three blocks on a multiprocessor, so that enough reads are in flight.
template <class F>
__global__ void __launch_bounds__(block_threads, 3) run_blocks(F f) {
  f(blockIdx.x);
}

/// Calls f(block) for each block with all its threads. f is a lambda with [=] __device__.
template <class F>
void for_blocks(device_stream_ref stream, unsigned blocks, F f) {
  run_blocks<<<blocks, block_threads, 0, stream.handle>>>(f);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

#endif

}}}  // namespace muster::v0::detail

#ifndef __CUDACC__
#include <loops_on_host.hpp>  // the test double's
#endif
