#pragma once

#include <muster/core/codec/powersgd.hpp>

#include <algorithm>
#include <cmath>
#include <string>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/lanes.hpp>
#include <muster/core/random.hpp>
#include <muster/core/simd.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

inline float dot(const float* a, const float* b, std::size_t count) {
  const auto add = [=](std::size_t i, detail::eight_floats& sums) {
    detail::eight_floats left, right;
    detail::load(a + i, left);
    detail::load(b + i, right);
    sums += left * right;
  };
  return detail::sum_in_lanes<detail::eight_floats, float>(0, count, add, [=](std::size_t i) { return a[i] * b[i]; });
}

// Computes the dot product of long columns, where small differences matter.
inline double exact_dot(const float* a, const float* b, std::size_t count) {
  const auto add = [=](std::size_t i, detail::four_doubles& sums) {
    detail::four_floats left, right;
    detail::load(a + i, left);
    detail::load(b + i, right);
    sums += __builtin_convertvector(left, detail::four_doubles) * __builtin_convertvector(right, detail::four_doubles);
  };
  return detail::sum_in_lanes<detail::four_doubles, double>(
      0, count, add, [=](std::size_t i) { return static_cast<double>(a[i]) * static_cast<double>(b[i]); });
}

struct rows_times_columns {
  static void run(const low_rank_shape* shape, const float* matrix, const float* right, float* left) {
    for (std::size_t row = 0; row < shape->rows; ++row) {
      for (std::size_t k = 0; k < shape->used(); ++k) {
        left[k * shape->rows + row] = dot(matrix + row * shape->columns, right + k * shape->columns, shape->columns);
      }
    }
  }
};

struct column_times_rows {
  static void run(const low_rank_shape* shape, const float* matrix, const float* left, float* right) {
    for (std::size_t row = 0; row < shape->rows; ++row) {
      const float* const source = matrix + row * shape->columns;
      for (std::size_t k = 0; k < shape->used(); ++k) {
        const float factor = left[k * shape->rows + row];
        float* const destination = right + k * shape->columns;
        for (std::size_t column = 0; column < shape->columns; ++column) destination[column] += factor * source[column];
      }
    }
  }
};

struct add_product {
  static void run(const low_rank_shape* shape, const float* left, const float* right, float weight, float* matrix) {
    for (std::size_t row = 0; row < shape->rows; ++row) {
      float* const destination = matrix + row * shape->columns;
      for (std::size_t k = 0; k < shape->used(); ++k) {
        const float factor = weight * left[k * shape->rows + row];
        const float* const source = right + k * shape->columns;
        for (std::size_t column = 0; column < shape->columns; ++column) destination[column] += factor * source[column];
      }
    }
  }
};

struct gram_schmidt {
  static void run(float* left, std::size_t row_count, std::size_t columns) {
    for (std::size_t k = 0; k < columns; ++k) {
      float* const column = left + k * row_count;
      const double before = exact_dot(column, column, row_count);
      for (int pass = 0; pass < 2; ++pass) {  // the second pass removes the rounding errors of the first
        for (std::size_t earlier = 0; earlier < k; ++earlier) {
          const float* const done = left + earlier * row_count;
          const auto factor = static_cast<float>(exact_dot(done, column, row_count));
          for (std::size_t row = 0; row < row_count; ++row) column[row] -= factor * done[row];
        }
      }
      const double after = exact_dot(column, column, row_count);
      // Below this limit the rest consists of rounding errors and contains no direction of the matrix.
      const bool dependent = after <= before * 1e-10 || after == 0.0;
      const auto scale = dependent ? 0.0f : static_cast<float>(1.0 / std::sqrt(after));
      for (std::size_t row = 0; row < row_count; ++row) column[row] = dependent ? 0.0f : column[row] * scale;
    }
  }
};

inline void require_sizes(const low_rank_shape& shape, std::size_t matrix, std::size_t left, std::size_t right) {
  if (matrix == shape.rows * shape.columns && left == shape.left_size() && right == shape.right_size()) return;
  throw configuration_error("PowerSGD cannot process " + std::to_string(matrix) + ", " + std::to_string(left) +
                            " and " + std::to_string(right) + " numbers (a matrix of " + std::to_string(shape.rows) +
                            " x " + std::to_string(shape.columns) + " has " +
                            std::to_string(shape.rows * shape.columns) + ", its factors " +
                            std::to_string(shape.left_size()) + " and " + std::to_string(shape.right_size()) +
                            "); pass spans with these sizes");
}

}  // namespace detail

MUSTER_INLINE void low_rank_left(const low_rank_shape& shape, std::span<const float> matrix,
                                 std::span<const float> right, std::span<float> left) {
  detail::require_sizes(shape, matrix.size(), left.size(), right.size());
  detail::run_vectorised<detail::rows_times_columns>(&shape, matrix.data(), right.data(), left.data());
}

MUSTER_INLINE void orthonormalise(const low_rank_shape& shape, std::span<float> left) {
  detail::require_sizes(shape, shape.rows * shape.columns, left.size(), shape.right_size());
  detail::run_vectorised<detail::gram_schmidt>(left.data(), shape.rows, shape.used());
}

MUSTER_INLINE void low_rank_right(const low_rank_shape& shape, std::span<const float> matrix,
                                  std::span<const float> left, std::span<float> right) {
  detail::require_sizes(shape, matrix.size(), left.size(), right.size());
  std::fill(right.begin(), right.end(), 0.0f);
  detail::run_vectorised<detail::column_times_rows>(&shape, matrix.data(), left.data(), right.data());
}

MUSTER_INLINE void low_rank_add(const low_rank_shape& shape, std::span<const float> left, std::span<const float> right,
                                float weight, std::span<float> matrix) {
  detail::require_sizes(shape, matrix.size(), left.size(), right.size());
  detail::run_vectorised<detail::add_product>(&shape, left.data(), right.data(), weight, matrix.data());
}

MUSTER_INLINE void low_rank_refill(const low_rank_shape& shape, std::uint64_t draw, std::span<float> right) {
  detail::require_sizes(shape, shape.rows * shape.columns, shape.left_size(), right.size());
  for (std::size_t k = 0; k < shape.used(); ++k) {
    const auto column = right.subspan(k * shape.columns, shape.columns);
    if (std::any_of(column.begin(), column.end(), [](float value) { return value != 0.0f; })) continue;
    random_stream random(draw, k);
    for (float& value : column) value = static_cast<float>(random.normal());
  }
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
