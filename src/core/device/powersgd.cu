#include "powersgd.hpp"

#include <algorithm>
#include <cmath>

#include "launch.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

using four = pack<float>;
struct two_fours {
  four first, second;
};

// A block has a part of a matrix: four columns for each lane, and as many rows as make its sums a small part of it.
constexpr unsigned part_columns = 4 * lanes, part_rows = 128;
constexpr unsigned ceiling(std::size_t size, std::size_t by) { return static_cast<unsigned>((size + by - 1) / by); }
constexpr unsigned across(const low_rank_shape& shape) { return ceiling(shape.columns, part_columns); }
constexpr unsigned down(const low_rank_shape& shape) { return ceiling(shape.rows, part_rows); }

/// What a thread has of its block's part: four columns, in the rows of its warp. P and Q are worked on four columns at
/// a time: at a higher rank the matrix is read again for each four.
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
    four made{};
    const float* const from = matrix + std::size_t{row} * columns + column;
    if (columns % 4 == 0 && column < columns) return *reinterpret_cast<const four*>(from);
    for (unsigned v = 0; v < 4; ++v) made.of[v] = column + v < columns ? from[v] : 0.0f;
    return made;
  }
  __device__ void write(const four& values, float* matrix, unsigned row) const {
    float* const to = matrix + std::size_t{row} * columns + column;
    if (columns % 4 == 0 && column < columns) {
      *reinterpret_cast<four*>(to) = values;
    } else {
      for (unsigned v = 0; v < 4 && column + v < columns; ++v) to[v] = values.of[v];
    }
  }
  /// Of a row, with four columns of P from k on; and of those of Q. Zeros behind the last.
  __device__ two_fours read_both(const low_rank_arrays& from, unsigned row, unsigned k) const {
    two_fours made{read(from.wanted, row), {}};
    const float* const left = from.left + std::size_t{row} * rank + k;
    for (unsigned j = 0; j < 4; ++j) made.second.of[j] = k + j < rank ? left[j] : 0.0f;
    return made;
  }
  __device__ void read_right(const float* right, unsigned k, four (&made)[4]) const {
    for (unsigned i = 0; i < 16; ++i) {
      const std::size_t j = k + i / 4, at = column + i % 4;
      made[i / 4].of[i % 4] = j < rank && at < columns ? right[j * columns + at] : 0.0f;
    }
  }
  /// use(row, load(row)) for each row; so many are loaded before the first is used.
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

/// Adds to each element its `count` parts: a lane has an element, a warp every so many-th part.
void add_parts(const float* parts, std::size_t count, std::size_t size, float* to, device_stream_ref stream) {
  for_blocks(stream, ceiling(size, lanes), [=] __device__(unsigned block) {
    const std::size_t i = std::size_t{block} * lanes + this_lane();
    float sum[1] = {};
    for (std::size_t k = this_warp(); i < size && k < count; k += warps) sum[0] += parts[k * size + i];
    sum_threads<lanes>(sum);
    if (i < size && this_warp() == 0) to[i] += sum[0];
  });
}

/// The Gram-Schmidt process of the host. A thread has its rows, and meets the others in sums.
void orthonormalise(const low_rank_arrays& of, device_stream_ref stream) {
  for_blocks(stream, 1, [of] __device__(unsigned) {
    const std::size_t rank = of.shape.used(), me = this_warp() * lanes + this_lane(), all = lanes * warps;
    const auto each_row = [&](const auto& f) {
      for (std::size_t row = me; row < of.shape.rows; row += all) f(of.left + row * rank);
    };
    const auto dot = [&](std::size_t a, std::size_t b) {
      double sum[1] = {};
      each_row([&](const float* row) { sum[0] += static_cast<double>(row[a]) * static_cast<double>(row[b]); });
      sum_threads<1>(sum);
      return sum[0];
    };
    for (std::size_t k = 0; k < rank; ++k) {
      const double before = dot(k, k);
      for (std::size_t i = 0; i < 2 * k; ++i) {  // the second time takes away what rounding of the first left
        const auto factor = static_cast<float>(dot(i % k, k));
        each_row([&](float* row) { row[k] -= factor * row[i % k]; });
      }
      const double after = dot(k, k);
      const bool dependent = after <= before * 1e-10 || after == 0.0;
      const auto scale = dependent ? 0.0f : static_cast<float>(1.0 / std::sqrt(after));
      each_row([&](float* row) { row[k] = dependent ? 0.0f : row[k] * scale; });
      for (std::size_t i = k * of.shape.columns + me; i < (k + 1) * of.shape.columns; i += all)
        of.own_right[i] = dependent ? of.first_right[i] : 0.0f;
    }
  });
}

}  // namespace

std::size_t low_rank_parts(const low_rank_shape& shape) {
  return std::max(across(shape) * shape.left_size(), down(shape) * shape.right_size());
}

void low_rank_left(const low_rank_arrays& of, device_stream_ref stream) {
  for_blocks(stream, across(of.shape) * down(of.shape), [of] __device__(unsigned block) {
    const thread_part at(of.shape, block);
    float* const parts = of.parts + at.in_column * of.shape.left_size();
    for (unsigned k = 0; k < at.rank; k += 4) {
      four right[4];
      at.read_right(of.right, k, right);
      const auto load = [&](unsigned row) { return two_fours{at.read(of.gradient, row), at.read(of.residual, row)}; };
      at.for_rows<2>(load, [&](unsigned row, const two_fours& loaded) {
        four wanted;
        float sums[4] = {};
        for (unsigned i = 0; i < 16; ++i) {
          if (i < 4) wanted.of[i] = loaded.first.of[i] + loaded.second.of[i];
          sums[i / 4] += wanted.of[i % 4] * right[i / 4].of[i % 4];
        }
        if (k == 0) at.write(wanted, of.wanted, row);
        sum_lanes(sums);
        for (unsigned j = 0; j < 4; ++j)
          if (this_lane() == 0 && k + j < at.rank) parts[std::size_t{row} * at.rank + k + j] = sums[j];
      });
    }
  });
  add_parts(of.parts, across(of.shape), of.shape.left_size(), of.left, stream);
}

void low_rank_right(const low_rank_arrays& of, device_stream_ref stream) {
  orthonormalise(of, stream);
  for_blocks(stream, across(of.shape) * down(of.shape), [of] __device__(unsigned block) {
    const thread_part at(of.shape, block);
    float* const parts = of.parts + at.in_row * of.shape.right_size();
    for (unsigned k = 0; k < at.rank; k += 4) {
      float sums[16] = {};
      const auto load = [&](unsigned row) { return at.read_both(of, row, k); };
      at.for_rows<4>(load, [&](unsigned, const two_fours& loaded) {
        for (unsigned i = 0; i < 16; ++i) sums[i] += loaded.first.of[i % 4] * loaded.second.of[i / 4];
      });
      sum_threads<lanes>(sums);
      for (unsigned i = 0; i < 16; ++i) {
        const std::size_t j = k + i / 4, column = at.column + i % 4;
        if (this_warp() == 0 && j < at.rank && column < at.columns) parts[j * at.columns + column] = sums[i];
      }
    }
  });
  add_parts(of.parts, down(of.shape), of.shape.right_size(), of.own_right, stream);
}

void low_rank_end(const low_rank_arrays& of, device_stream_ref stream) {
  for_blocks(stream, across(of.shape) * down(of.shape), [of] __device__(unsigned block) {
    const thread_part at(of.shape, block);
    for (unsigned k = 0; k < at.rank; k += 4) {
      four own[4], all[4];
      at.read_right(of.own_right, k, own);
      at.read_right(of.all_right, k, all);
      const auto load = [&](unsigned row) { return at.read_both(of, row, k); };
      at.for_rows<2>(load, [&](unsigned row, two_fours loaded) {
        four sum = k == 0 ? four{} : at.read(of.gradient, row);
        for (unsigned i = 0; i < 16; ++i) {
          loaded.first.of[i % 4] -= loaded.second.of[i / 4] * own[i / 4].of[i % 4];
          sum.of[i % 4] += loaded.second.of[i / 4] * all[i / 4].of[i % 4];
        }
        at.write(loaded.first, of.wanted, row);
        at.write(sum, of.gradient, row);
      });
    }
  });
}

}}}  // namespace muster::v0::detail
