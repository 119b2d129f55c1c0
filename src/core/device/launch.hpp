// Loops on a device. nvcc makes kernels of them; where the sources are compiled without it, for the test double, they
// are functions that the stream calls. What they are given are lambdas that are __device__, or functors with a
// constexpr operator(), which nvcc takes for device code too (--expt-relaxed-constexpr).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <muster/core/device/stream.hpp>

#include "check.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Threads of a block, on a processor too: sums depend on it.
inline constexpr unsigned block_threads = 256;
/// Elements that a thread reads or writes at once: 16 bytes of floats.
inline constexpr std::size_t pack_size = 4;

template <class T>
struct alignas(pack_size * sizeof(T)) pack {
  T of[pack_size];
};

#ifdef __CUDACC__

/// Enough to fill any device there is; each thread goes on for as long as there is something to do.
inline constexpr std::size_t most_blocks = 16384;
/// Packs of each array that a thread reads before it goes on: what is under way must cover the time that memory takes
/// to answer, and leave room for threads.
template <class... T>
inline constexpr std::size_t packs_at_once = sizeof...(T) > 2 ? 1 : 2;

template <std::size_t N, class T>
struct packs_of_thread {
  pack<std::remove_const_t<T>> packs[N];
};

template <std::size_t N, class T>
__device__ packs_of_thread<N, T> read(const T* array, std::size_t first, std::size_t stride, std::size_t end) {
  packs_of_thread<N, T> made;
  for (std::size_t j = 0; j < N; ++j) {
    const std::size_t i = first + j * stride;
    if (i < end) made.packs[j] = reinterpret_cast<const pack<std::remove_const_t<T>>*>(array)[i];
  }
  return made;
}
template <std::size_t N, class T>
__device__ void write(const packs_of_thread<N, T>& made, T* array, std::size_t first, std::size_t stride,
                      std::size_t end) {
  if constexpr (!std::is_const_v<T>) {
    for (std::size_t j = 0; j < N; ++j) {
      const std::size_t i = first + j * stride;
      if (i < end) reinterpret_cast<pack<T>*>(array)[i] = made.packs[j];
    }
  }
}

// What f only writes is read too, in these words; the compiler leaves out a read that nothing depends on.
template <class F, class... T>
__global__ void run_for_each(std::size_t size, std::size_t packs, F f, T* __restrict__... arrays) {
  constexpr std::size_t at_once = packs_at_once<T...>;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * block_threads;
  const std::size_t me = static_cast<std::size_t>(blockIdx.x) * block_threads + threadIdx.x;
  for (std::size_t i = me; i < packs; i += at_once * threads) {
    [&](packs_of_thread<at_once, T>... made) {
      for (std::size_t j = 0; j < at_once; ++j) {
        for (std::size_t k = 0; k < pack_size; ++k) f(made.packs[j].of[k]...);
      }
      (write<at_once, T>(made, arrays, i, threads, packs), ...);
    }(read<at_once, T>(arrays, i, threads, packs)...);
  }
  for (std::size_t i = pack_size * packs + me; i < size; i += threads) f(arrays[i]...);
}

/// f(arrays[i]...) for each i below `size`, in any order, at once; f changes what it takes by reference to non-const.
/// The arrays do not overlap. Where all begin at a multiple of a pack's bytes it is a pack at a time.
template <class F, class... T>
void for_each(device_stream_ref stream, std::size_t size, F f, T*... arrays) {
  if (size == 0) return;
  const bool aligned = ((reinterpret_cast<std::uintptr_t>(arrays) % sizeof(pack<T>) == 0) && ...);
  const std::size_t packs = aligned ? size / pack_size : 0;
  const std::size_t a_block = block_threads * (aligned ? packs_at_once<T...> * pack_size : 1);
  const std::size_t blocks = (size + a_block - 1) / a_block;
  run_for_each<F, T...>
      <<<static_cast<unsigned>(blocks < most_blocks ? blocks : most_blocks), block_threads, 0, stream.handle>>>(
          size, packs, f, arrays...);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

/// Each of `of` becomes, for all threads of the block, its sum over those of the same number modulo `To`: half of the
/// threads adds the other half to itself, until so many are left.
template <unsigned To, class T, unsigned N>
__device__ void sum_threads(T (&of)[N]) {
  __shared__ T all[N][block_threads];
  const unsigned me = threadIdx.x;
  for (unsigned k = 0; k < N; ++k) all[k][me] = of[k];
  for (unsigned half = block_threads / 2; half >= To; half /= 2) {
    __syncthreads();
    for (unsigned k = 0; k < N && me < half; ++k) all[k][me] += all[k][me + half];
  }
  __syncthreads();
  for (unsigned k = 0; k < N; ++k) of[k] = all[k][me % To];
  __syncthreads();  // before the next sum
}

template <class F>
__global__ void run_sums(std::size_t size, std::size_t part, F value, double* sums) {
  constexpr std::size_t at_once = 8;
  const unsigned lane = threadIdx.x;
  const std::size_t first = blockIdx.x * part, end = size < first + part ? size : first + part;
  double sum[1] = {};
  for (std::size_t i = first + lane; i < end; i += at_once * block_threads) {
    double values[at_once];  // all are read before the first is added
    for (std::size_t j = 0; j < at_once; ++j) {
      const std::size_t at = i + j * block_threads;
      values[j] = at < end ? value(at) : 0;
    }
    for (std::size_t j = 0; j < at_once; ++j) sum[0] += values[j];
  }
  sum_threads<1>(sum);
  if (lane == 0) sums[blockIdx.x] = sum[0];
}

/// sums[k] becomes the sum of value(i) for all i of the k-th part of those below `size`. Each of `block_threads`
/// threads adds every so many-th of them, and then sum_threads these: an order that depends on nothing else.
template <class F>
void sum_parts(device_stream_ref stream, std::size_t size, std::size_t part, F value, double* sums) {
  if (size == 0) return;
  run_sums<<<static_cast<unsigned>((size + part - 1) / part), block_threads, 0, stream.handle>>>(size, part, value,
                                                                                                 sums);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

/// Threads of a warp, and warps of a block.
inline constexpr unsigned lanes = 32, warps = block_threads / lanes;
__device__ inline unsigned this_lane() { return threadIdx.x % lanes; }
__device__ inline unsigned this_warp() { return threadIdx.x / lanes; }

/// Each of `of` becomes its sum over the lanes of the warp, for all of them.
template <unsigned N>
__device__ void sum_lanes(float (&of)[N]) {
  for (unsigned k = 0; k < N; ++k)
    for (unsigned by = lanes / 2; by > 0; by /= 2) of[k] += __shfl_xor_sync(~0u, of[k], by);
}

// At least three on a multiprocessor, so that enough reads are under way.
template <class F>
__global__ void __launch_bounds__(block_threads, 3) run_blocks(F f) {
  f(blockIdx.x);
}

/// f(block) for each of so many blocks, by all threads of each; f is a lambda that is [=] __device__.
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
