// Loops over matrices in a device's memory. A matrix is a sequence of rows: pixels and their channels. nvcc compiles
// the loops to kernels. Without nvcc, for a test double of CUDA's runtime, they are plain loops that the stream calls.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/core/error.hpp>

#ifdef __CUDACC__
#define NN_BOTH __host__ __device__
#else
#define NN_BOTH
#endif
#ifdef MUSTER_TEST_DOUBLE
#include <call_on_stream.hpp>
#endif

namespace nn::device {

inline void check_cuda(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw muster::error(muster::error_kind::other,
                      std::string(call) + " failed (CUDA says: " + cudaGetErrorString(code) + "); look at nvidia-smi");
}

/// Neighbouring columns of a row, which are loaded and stored at once.
template <std::size_t W>
struct pack {
  float at[W];
};

template <class A, std::size_t W>
struct alignas(W * sizeof(A)) stored_pack {
  A at[W];
};

/// Loads a pack. `from` must be aligned to the pack.
template <std::size_t W, class A>
NN_BOTH inline pack<W> load(const A* from) {
  stored_pack<A, W> found;
#ifdef __CUDA_ARCH__
  found = *reinterpret_cast<const stored_pack<A, W>*>(from);
#else
  std::copy_n(from, W, found.at);
#endif
  pack<W> result;
  for (std::size_t k = 0; k < W; ++k) result.at[k] = static_cast<float>(found.at[k]);
  return result;
}

template <std::size_t W, class A>
NN_BOTH inline void store(A* to, const pack<W>& values) {
  stored_pack<A, W> stored;
  for (std::size_t k = 0; k < W; ++k) stored.at[k] = A(values.at[k]);
#ifdef __CUDA_ARCH__
  *reinterpret_cast<stored_pack<A, W>*>(to) = stored;
#else
  std::copy_n(stored.at, W, to);
#endif
}

/// K sums for each column of a pack.
template <std::size_t K, std::size_t W>
struct sums {
  float at[K][W];
};
template <std::size_t K>
struct column_totals {
  double at[K];
};

constexpr unsigned block_size = 512;  // Number of threads in a block, and its largest number of columns.

/// The memory that sums of columns need between their kernels. Calls on one stream may share it.
class column_scratch {
 public:
  static constexpr std::size_t most_blocks = 132, most_sums = 3;

  /// Allocates memory for matrices with up to `columns` columns.
  explicit column_scratch(std::size_t columns)
      : partial(most_blocks * most_sums * columns), counters((columns + block_size - 1) / block_size) {}

  muster::device_buffer<float> partial;
  muster::device_buffer<unsigned> counters;  // All zero between calls.
};

#ifdef __CUDACC__

/// The division of a matrix among the threads of a block: each thread has a pack of columns and every `lanes`-th row.
template <std::size_t W>
struct tiling {
  unsigned columns, packs, lanes;
  NN_BOTH explicit tiling(std::size_t all)
      : columns(all < block_size ? static_cast<unsigned>(all) : block_size),
        packs(columns / W),
        lanes(block_size / packs) {}
};

inline unsigned blocks_for(std::size_t rows, unsigned lanes, std::size_t rows_each, std::size_t most) {
  const std::size_t blocks = (rows + lanes * rows_each - 1) / (lanes * rows_each);
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

template <std::size_t W, class F>
__global__ void __launch_bounds__(block_size) run_per_column(std::size_t rows, std::size_t columns, F f) {
  const tiling<W> tile(columns);
  const unsigned lane = threadIdx.x / tile.packs;
  const std::size_t column = blockIdx.y * std::size_t{block_size} + (threadIdx.x % tile.packs) * W;
  if (lane >= tile.lanes || column >= columns) return;
  const auto each = f.template at<W>(column);
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * tile.lanes;
  for (std::size_t row = static_cast<std::size_t>(blockIdx.x) * tile.lanes + lane; row < rows; row += stride) each(row);
}

/// Sums the values that the threads of a pack hold. The threads of lane 0 hold the result.
template <std::size_t K, std::size_t W>
__device__ void add_lanes(sums<K, W>& mine, float (*shared)[block_size * W], const tiling<W>& tile, unsigned lane) {
  for (unsigned left = tile.lanes; left > 1;) {
    const unsigned half = (left + 1) / 2;
    __syncthreads();
    if (lane >= half && lane < left) {
      for (std::size_t k = 0; k < K; ++k) {
        for (std::size_t w = 0; w < W; ++w) shared[k][threadIdx.x * W + w] = mine.at[k][w];
      }
    }
    __syncthreads();
    if (lane + half < left) {
      const unsigned other = threadIdx.x + half * tile.packs;
      for (std::size_t k = 0; k < K; ++k) {
        for (std::size_t w = 0; w < W; ++w) mine.at[k][w] += shared[k][other * W + w];
      }
    }
    left = half;
  }
}

template <std::size_t K, std::size_t W, class F, class Finish>
__global__ void __launch_bounds__(block_size)
    run_column_sums(std::size_t rows, std::size_t columns, float* partial, unsigned* counters, F f, Finish finish) {
  __shared__ float shared[K][block_size * W];
  __shared__ bool last;
  const tiling<W> tile(columns);
  const unsigned lane = threadIdx.x / tile.packs;
  const std::size_t column = blockIdx.y * std::size_t{block_size} + (threadIdx.x % tile.packs) * W;
  const bool works = lane < tile.lanes && column < columns;
  sums<K, W> mine{};
  if (works) {
    const auto each = f.template at<W>(column);
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * tile.lanes;
#pragma unroll 4
    for (std::size_t row = static_cast<std::size_t>(blockIdx.x) * tile.lanes + lane; row < rows; row += stride) {
      const sums<K, W> more = each(row);
      for (std::size_t k = 0; k < K; ++k) {
        for (std::size_t w = 0; w < W; ++w) mine.at[k][w] += more.at[k][w];
      }
    }
  }
  add_lanes(mine, shared, tile, works ? lane : tile.lanes);
  if (works && lane == 0) {
    for (std::size_t k = 0; k < K; ++k)
      store(partial + (static_cast<std::size_t>(blockIdx.x) * K + k) * columns + column,
            *reinterpret_cast<const pack<W>*>(mine.at[k]));
  }
  // The last block for these columns adds all blocks' partial sums, in an order that depends only on the size.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&counters[blockIdx.y], 1) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  sums<K, W> all{};
  if (works) {
#pragma unroll 4
    for (unsigned b = lane; b < gridDim.x; b += tile.lanes) {
      for (std::size_t k = 0; k < K; ++k) {
        const float* const from = partial + (static_cast<std::size_t>(b) * K + k) * columns + column;
        for (std::size_t w = 0; w < W; ++w) all.at[k][w] += __ldcg(from + w);
      }
    }
  }
  add_lanes(all, shared, tile, works ? lane : tile.lanes);
  if (works && lane == 0) {
    for (std::size_t w = 0; w < W; ++w) {
      column_totals<K> totals;
      for (std::size_t k = 0; k < K; ++k) totals.at[k] = all.at[k][w];
      finish(column + w, totals);
    }
  }
  if (threadIdx.x == 0) counters[blockIdx.y] = 0;
}

/// Calls each(row) for all rows, where `each` is f.at<W>(column) and processes W columns from `column` on at once.
template <class F>
void per_column(muster::device_stream_ref stream, std::size_t rows, std::size_t columns, F f) {
  if (rows == 0 || columns == 0) return;
  const auto start = [&]<std::size_t W>() {
    const tiling<W> tile(columns);
    const dim3 grid(blocks_for(rows, tile.lanes, 1, 4096),
                    static_cast<unsigned>((columns + block_size - 1) / block_size));
    run_per_column<W><<<grid, block_size, 0, stream.handle>>>(rows, columns, f);
  };
  columns % 4 == 0 ? start.template operator()<4>() : start.template operator()<1>();
  check_cuda(cudaGetLastError(), "starting a kernel");
}

/// Calls each(row), as above, which returns K terms for each column, and finish(column, totals) once for each column.
template <std::size_t K, class F, class Finish>
void column_sums(muster::device_stream_ref stream, column_scratch& scratch, std::size_t rows, std::size_t columns, F f,
                 Finish finish) {
  const auto start = [&]<std::size_t W>() {
    const tiling<W> tile(columns);
    const dim3 grid(blocks_for(rows, tile.lanes, 4, column_scratch::most_blocks),
                    static_cast<unsigned>((columns + block_size - 1) / block_size));
    run_column_sums<K, W><<<grid, block_size, 0, stream.handle>>>(rows, columns, scratch.partial.span().data(),
                                                                  scratch.counters.span().data(), f, finish);
  };
  columns % 4 == 0 ? start.template operator()<4>() : start.template operator()<1>();
  check_cuda(cudaGetLastError(), "starting a kernel");
}

#elif defined(MUSTER_TEST_DOUBLE)

template <class F>
void per_column(muster::device_stream_ref stream, std::size_t rows, std::size_t columns, F f) {
  nccl_double::call_on_stream(stream, [=] {
    const auto run = [&]<std::size_t W>() {
      for (std::size_t column = 0; column < columns; column += W) {
        const auto each = f.template at<W>(column);
        for (std::size_t row = 0; row < rows; ++row) each(row);
      }
    };
    columns % 4 == 0 ? run.template operator()<4>() : run.template operator()<1>();
  });
}

template <std::size_t K, class F, class Finish>
void column_sums(muster::device_stream_ref stream, column_scratch&, std::size_t rows, std::size_t columns, F f,
                 Finish finish) {
  nccl_double::call_on_stream(stream, [=] {
    const auto run = [&]<std::size_t W>() {
      for (std::size_t column = 0; column < columns; column += W) {
        const auto each = f.template at<W>(column);
        column_totals<K> totals[W]{};
        for (std::size_t row = 0; row < rows; ++row) {
          const auto more = each(row);
          for (std::size_t k = 0; k < K; ++k) {
            for (std::size_t w = 0; w < W; ++w) totals[w].at[k] += static_cast<double>(more.at[k][w]);
          }
        }
        for (std::size_t w = 0; w < W; ++w) finish(column + w, totals[w]);
      }
    };
    columns % 4 == 0 ? run.template operator()<4>() : run.template operator()<1>();
  });
}

#endif

}  // namespace nn::device
