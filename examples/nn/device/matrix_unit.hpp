// The building blocks of kernels with blocks and warps: indices, shared memory, matrix units (PTX's ldmatrix and mma).
// Without nvcc, for a test double, an emulated block runs them on the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>

#include "launch.hpp"

#ifdef __CUDACC__
#define NN_KERNEL __global__
#define NN_DEVICE_FUNCTION __device__ inline
#define NN_UNROLL_8 _Pragma("unroll 8")
#else
#define NN_KERNEL
#define NN_DEVICE_FUNCTION inline
#define NN_UNROLL_8
#include <emulated_block.hpp>
#endif

namespace nn::device {

/// Four registers of a thread: its part of a tile of 16 rows of 32 bytes, or its parts of two tiles of 8 columns.
template <int N>
struct fragment {
  std::uint32_t at[N];
  NN_DEVICE_FUNCTION void set(int k, float value);
};

#ifdef __CUDACC__

using vector_16 = uint4;

NN_DEVICE_FUNCTION unsigned thread_index() { return threadIdx.x; }
NN_DEVICE_FUNCTION unsigned block_threads() { return blockDim.x; }
NN_DEVICE_FUNCTION unsigned block_x() { return blockIdx.x; }
NN_DEVICE_FUNCTION unsigned block_y() { return blockIdx.y; }
NN_DEVICE_FUNCTION unsigned grid_x() { return gridDim.x; }
NN_DEVICE_FUNCTION void synchronise_block() { __syncthreads(); }
/// Starts a copy of 16 bytes from the device's memory to shared memory. It is complete once this thread waits for its
/// copies.
NN_DEVICE_FUNCTION void start_copy(unsigned char* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))), "l"(from));
}
NN_DEVICE_FUNCTION void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
NN_DEVICE_FUNCTION unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char memory[];
  return memory;
}
NN_DEVICE_FUNCTION std::uint32_t bits_of(float value) { return __float_as_uint(value); }
NN_DEVICE_FUNCTION float float_of(std::uint32_t bits) { return __uint_as_float(bits); }
NN_DEVICE_FUNCTION std::uint32_t to_tf32(float value) {
  std::uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(value));
  return rounded;
}
/// Loads four matrices of 8 rows of 16 bytes. Lane l's `row` is row l % 8 of matrix l / 8.
NN_DEVICE_FUNCTION void load_fragment(fragment<4>& to, const unsigned char* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
               : "r"(address));
}
NN_DEVICE_FUNCTION void load_transposed(fragment<4>& to, const unsigned char* row) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3])
               : "r"(address));
}
NN_DEVICE_FUNCTION void mma_tf32(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
NN_DEVICE_FUNCTION void mma_bf16(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class... Parameters, class... Arguments>
void start_kernel(void (*kernel)(Parameters...), int blocks_x, int blocks_y, int threads, int memory,
                  muster::device_stream_ref stream, const Arguments&... arguments) {
  if (memory > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, memory),
               "cudaFuncSetAttribute");
  }
  kernel<<<dim3(static_cast<unsigned>(blocks_x), static_cast<unsigned>(blocks_y)), static_cast<unsigned>(threads),
           static_cast<std::size_t>(memory), stream.handle>>>(arguments...);
  check_cuda(cudaGetLastError(), "starting a kernel");
}

#else

using vector_16 = emulated::vector_16;
using emulated::bits_of;
using emulated::float_of;
using emulated::to_tf32;
inline unsigned thread_index() { return emulated::self().thread; }
inline unsigned block_threads() { return emulated::self().threads; }
inline unsigned block_x() { return emulated::self().block_x; }
inline unsigned block_y() { return emulated::self().block_y; }
inline unsigned grid_x() { return emulated::self().grid_x; }
inline void synchronise_block() { emulated::wait_for_block(); }
inline void start_copy(unsigned char* to, const void* from) { std::memcpy(to, from, 16); }
inline void wait_for_copies() {}
inline unsigned char* shared_memory() { return emulated::memory(); }
inline void load_fragment(fragment<4>& to, const unsigned char* row) { emulated::load_matrices(to.at, row, false); }
inline void load_transposed(fragment<4>& to, const unsigned char* row) { emulated::load_matrices(to.at, row, true); }
inline void mma_tf32(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulated::multiply<4>(sum, a, b0, b1);
}
inline void mma_bf16(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  emulated::multiply<2>(sum, a, b0, b1);
}

template <class... Parameters, class... Arguments>
void start_kernel(void (*kernel)(Parameters...), int blocks_x, int blocks_y, int threads, int memory,
                  muster::device_stream_ref stream, const Arguments&... arguments) {
  nccl_double::call_on_stream(
      stream, [=] { emulated::run(blocks_x, blocks_y, threads, memory, [=] { kernel(arguments...); }); });
}

#endif

template <int N>
NN_DEVICE_FUNCTION void fragment<N>::set(int k, float value) {
  at[k] = bits_of(value);
}

/// A fragment in the form of the matrix unit's operands. For floats with Split 3 it also holds the remainders that TF32
/// omits.
template <class A, int Split>
struct operand {
  std::uint32_t high[4], low[Split == 3 ? 4 : 1];
};

template <class A, int Split>
NN_DEVICE_FUNCTION operand<A, Split> prepare(const fragment<4>& of) {
  operand<A, Split> result;
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(A) == 2) {
      result.high[k] = of.at[k];
    } else {
      const float value = float_of(of.at[k]);
      result.high[k] = to_tf32(value);
      if constexpr (Split == 3) result.low[k] = to_tf32(value - float_of(result.high[k]));
    }
  }
  return result;
}

/// Computes sum += left * the tile of 8 columns of `right` in registers `first` and `first + 1`.
template <class A, int Split>
NN_DEVICE_FUNCTION void multiply_add(float (&sum)[4], const operand<A, Split>& left, const operand<A, Split>& right,
                                     int first) {
  if constexpr (sizeof(A) == 2) {
    mma_bf16(sum, left.high, right.high[first], right.high[first + 1]);
  } else {
    if constexpr (Split == 3) {
      mma_tf32(sum, left.low, right.high[first], right.high[first + 1]);
      mma_tf32(sum, left.high, right.low[first], right.low[first + 1]);
    }
    mma_tf32(sum, left.high, right.high[first], right.high[first + 1]);
  }
}

}  // namespace nn::device
