#include "device_powersgd.hpp"

#include <algorithm>
#include <cmath>

#include "launch.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

using four = pack<float>;
struct two_fours {
  four first, second;
};

// A block processes a part of a matrix: four columns for each lane, and enough rows that the sums are small compared to
// the part.
constexpr unsigned part_columns = 4 * lanes, part_rows = 128;
constexpr unsigned ceiling(std::size_t size, std::size_t by) { return static_cast<unsigned>((size + by - 1) / by); }
constexpr unsigned across(const low_rank_shape& shape) { return ceiling(shape.columns, part_columns); }
constexpr unsigned down(const low_rank_shape& shape) { return ceiling(shape.rows, part_rows); }

/// The part of a block that a thread processes: four columns, in the rows of its warp. P and Q are processed four
/// columns at a time. At a higher rank the matrix is read again for each four columns.
struct thread_part {
  unsigned rank, columns, in_row, in_column, column, first_row, end_row;

  __device__ thread_part(const low_rank_shape& shape, unsigned block)
      : rank(static_cast<unsigned>(shape.used())),
        columns(static_cast<unsigned>(shape.columns)),
        in_row(block / across(shape)),
        in_column(block % across(shape)),
        column(in_column * part_columns + 4 * this_lane()),
        first_row(in_row * part_rows + this_warp()),
        end_row(std::min((in_row + 1) * part_rows, static_cast<unsigned>(shape.rows))) {}

  __device__ four read(const float* matrix, unsigned row) const {
    four result{};
    const float* const source = matrix + std::size_t{row} * columns + column;
    if (columns % 4 == 0 && column < columns) return *reinterpret_cast<const four*>(source);
    for (unsigned v = 0; v < 4; ++v) result.values[v] = column + v < columns ? source[v] : 0.0f;
    return result;
  }
  __device__ void write(const four& values, float* matrix, unsigned row) const {
    float* const destination = matrix + std::size_t{row} * columns + column;
    if (columns % 4 == 0 && column < columns) {
      *reinterpret_cast<four*>(destination) = values;
    } else {
      for (unsigned v = 0; v < 4 && column + v < columns; ++v) destination[v] = values.values[v];
    }
  }
  /// Reads four elements of a row, and the row's elements in four columns of P from column k. Elements after the last
  /// are zeros.
  __device__ two_fours read_both(const low_rank_arrays& arrays, unsigned row, unsigned k) const {
    two_fours result{read(arrays.target, row), {}};
    const float* const left = arrays.left + std::size_t{row} * rank + k;
    for (unsigned j = 0; j < 4; ++j) result.second.values[j] = k + j < rank ? left[j] : 0.0f;
    return result;
  }
  __device__ void read_right(const float* right, unsigned k, four (&columns_out)[4]) const {
    for (unsigned i = 0; i < 16; ++i) {
      const std::size_t j = k + i / 4, at = column + i % 4;
      columns_out[i / 4].values[i % 4] = j < rank && at < columns ? right[j * columns + at] : 0.0f;
    }
  }
  /// Calls use(row, load(row)) for each row. `Ahead` rows are loaded before the first is used.
  template <unsigned Ahead, class Load, class Use>
  __device__ void for_rows(const Load& load, const Use& use) const {
    for (unsigned row = first_row; row < end_row; row += Ahead * warps) {
      two_fours loaded[Ahead];
      for (unsigned j = 0; j < Ahead; ++j)
        if (row + j * warps < end_row) loaded[j] = load(row + j * warps);
      for (unsigned j = 0; j < Ahead; ++j)
        if (row + j * warps < end_row) use(row + j * warps, loaded[j]);
    }
  }
};

/// Adds to each element its `count` parts. A lane processes an element, a warp every warps-th part.
void add_parts(const float* parts, std::size_t count, std::size_t size, float* destination, device_stream_ref stream) {
  for_blocks(stream, ceiling(size, lanes), [=] __device__(unsigned block) {
    const std::size_t i = std::size_t{block} * lanes + this_lane();
    float sum[1] = {};
    for (std::size_t k = this_warp(); i < size && k < count; k += warps) sum[0] += parts[k * size + i];
    sum_threads<lanes>(sum);
    if (i < size && this_warp() == 0) destination[i] += sum[0];
  });
}

/// Performs the host's Gram-Schmidt process. A thread has its own rows, and the block combines the threads' sums.
void orthonormalise(const low_rank_arrays& arrays, device_stream_ref stream) {
  for_blocks(stream, 1, [arrays] __device__(unsigned) {
    const std::size_t rank = arrays.shape.used(), me = this_warp() * lanes + this_lane(), all = lanes * warps;
    const auto each_row = [&](const auto& f) {
      for (std::size_t row = me; row < arrays.shape.rows; row += all) f(arrays.left + row * rank);
    };
    const auto dot = [&](std::size_t a, std::size_t b) {
      double sum[1] = {};
      each_row([&](const float* row) { sum[0] += static_cast<double>(row[a]) * static_cast<double>(row[b]); });
      sum_threads<1>(sum);
      return sum[0];
    };
    for (std::size_t k = 0; k < rank; ++k) {
      const double before = dot(k, k);
      for (std::size_t i = 0; i < 2 * k; ++i) {  // the second pass removes the rounding errors of the first
        const auto factor = static_cast<float>(dot(i % k, k));
        each_row([&](float* row) { row[k] -= factor * row[i % k]; });
      }
      const double after = dot(k, k);
      const bool dependent = after <= before * 1e-10 || after == 0.0;
      const auto scale = dependent ? 0.0f : static_cast<float>(1.0 / std::sqrt(after));
      each_row([&](float* row) { row[k] = dependent ? 0.0f : row[k] * scale; });
      for (std::size_t i = k * arrays.shape.columns + me; i < (k + 1) * arrays.shape.columns; i += all)
        arrays.own_right[i] = dependent ? arrays.first_right[i] : 0.0f;
    }
  });
}

}  // namespace

std::size_t low_rank_parts(const low_rank_shape& shape) {
  return std::max(across(shape) * shape.left_size(), down(shape) * shape.right_size());
}

void low_rank_left(const low_rank_arrays& arrays, device_stream_ref stream) {
  for_blocks(stream, across(arrays.shape) * down(arrays.shape), [arrays] __device__(unsigned block) {
    const thread_part at(arrays.shape, block);
    float* const parts = arrays.parts + at.in_column * arrays.shape.left_size();
    for (unsigned k = 0; k < at.rank; k += 4) {
      four right[4];
      at.read_right(arrays.right, k, right);
      const auto load = [&](unsigned row) {
        return two_fours{at.read(arrays.gradient, row), at.read(arrays.residual, row)};
      };
      at.for_rows<2>(load, [&](unsigned row, const two_fours& loaded) {
        four target;
        float sums[4] = {};
        for (unsigned i = 0; i < 16; ++i) {
          if (i < 4) target.values[i] = loaded.first.values[i] + loaded.second.values[i];
          sums[i / 4] += target.values[i % 4] * right[i / 4].values[i % 4];
        }
        if (k == 0) at.write(target, arrays.target, row);
        sum_lanes(sums);
        for (unsigned j = 0; j < 4; ++j)
          if (this_lane() == 0 && k + j < at.rank) parts[std::size_t{row} * at.rank + k + j] = sums[j];
      });
    }
  });
  add_parts(arrays.parts, across(arrays.shape), arrays.shape.left_size(), arrays.left, stream);
}

void low_rank_right(const low_rank_arrays& arrays, device_stream_ref stream) {
  orthonormalise(arrays, stream);
  for_blocks(stream, across(arrays.shape) * down(arrays.shape), [arrays] __device__(unsigned block) {
    const thread_part at(arrays.shape, block);
    float* const parts = arrays.parts + at.in_row * arrays.shape.right_size();
    for (unsigned k = 0; k < at.rank; k += 4) {
      float sums[16] = {};
      const auto load = [&](unsigned row) { return at.read_both(arrays, row, k); };
      at.for_rows<4>(load, [&](unsigned, const two_fours& loaded) {
        for (unsigned i = 0; i < 16; ++i) sums[i] += loaded.first.values[i % 4] * loaded.second.values[i / 4];
      });
      sum_threads<lanes>(sums);
      for (unsigned i = 0; i < 16; ++i) {
        const std::size_t j = k + i / 4, column = at.column + i % 4;
        if (this_warp() == 0 && j < at.rank && column < at.columns) parts[j * at.columns + column] = sums[i];
      }
    }
  });
  add_parts(arrays.parts, down(arrays.shape), arrays.shape.right_size(), arrays.own_right, stream);
}

void low_rank_end(const low_rank_arrays& arrays, device_stream_ref stream) {
  for_blocks(stream, across(arrays.shape) * down(arrays.shape), [arrays] __device__(unsigned block) {
    const thread_part at(arrays.shape, block);
    for (unsigned k = 0; k < at.rank; k += 4) {
      four own[4], all[4];
      at.read_right(arrays.own_right, k, own);
      at.read_right(arrays.all_right, k, all);
      const auto load = [&](unsigned row) { return at.read_both(arrays, row, k); };
      at.for_rows<2>(load, [&](unsigned row, two_fours loaded) {
        four sum = k == 0 ? four{} : at.read(arrays.gradient, row);
        for (unsigned i = 0; i < 16; ++i) {
          loaded.first.values[i % 4] -= loaded.second.values[i / 4] * own[i / 4].values[i % 4];
          sum.values[i % 4] += loaded.second.values[i / 4] * all[i / 4].values[i % 4];
        }
        at.write(loaded.first, arrays.target, row);
        at.write(sum, arrays.gradient, row);
      });
    }
  });
}

}}}  // namespace muster::v0::detail
