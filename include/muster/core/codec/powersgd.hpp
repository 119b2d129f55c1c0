// PowerSGD: approximates the sum of the ranks' matrices by a product of two thin matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

/// A tensor as a matrix for PowerSGD: `rows` (its first extents) by `columns` (the others), approximated with `rank`
/// columns.
struct low_rank_shape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;  ///< the user's choice; may exceed the sides of the matrix

  /// Returns the number of columns in P and Q: `rank`, limited to the smaller side of the matrix.
  [[nodiscard]] constexpr std::size_t used() const noexcept {
    const std::size_t side = rows < columns ? rows : columns;
    return rank < side ? rank : side;
  }
  [[nodiscard]] constexpr std::size_t left_size() const noexcept { return used() * rows; }      ///< of P, in floats
  [[nodiscard]] constexpr std::size_t right_size() const noexcept { return used() * columns; }  ///< of Q, in floats
  /// Returns true if P and Q together are smaller than the matrix. Other tensors, such as one-dimensional ones, are
  /// sent uncompressed.
  [[nodiscard]] constexpr bool pays() const noexcept {
    return rows > 1 && columns > 1 && left_size() + right_size() < rows * columns;
  }
};

/// Computes the steps of PowerSGD (Vogels, Karimireddy and Jaggi 2019, https://arxiv.org/abs/1905.13727, algorithm 1)
/// for one row-major matrix M, the sum of the gradient and the residual of error feedback:
///
///     low_rank_left(shape, M, Q, P);      allreduce(P, sum)      P = sum of M Q
///     orthonormalise(shape, P);                                  the same bits at every rank
///     low_rank_right(shape, M, P, Q);                            Q = transposed M times P
///     residual = M; low_rank_add(shape, P, Q, -1, residual)      this rank's error
///     allreduce(Q, sum)                                          P times transposed Q approximates the sum of M
///     low_rank_add(shape, P, Q, 1, zeros)
///     low_rank_refill(shape, draw, Q)                           the Q of the next step: warm start
///
/// P and Q hold `used()` columns one after the other, of `rows` and `columns` floats. The residual is the error of this
/// rank's own projection, so that the ranks' residuals sum to the error of the result, and no residual
/// drifts. The spans must have the sizes of the shape (configuration_error) and must not overlap. The bits are the same
/// on every machine.

/// Computes P = M Q. Reads the matrix once.
void low_rank_left(const low_rank_shape& shape, std::span<const float> matrix, std::span<const float> right,
                   std::span<float> left);
/// Makes the columns of P orthonormal (Gram-Schmidt, applied twice to each column). A column that depends linearly on
/// earlier columns becomes zeros.
void orthonormalise(const low_rank_shape& shape, std::span<float> left);
/// Computes Q = transposed M times P. Reads the matrix once.
void low_rank_right(const low_rank_shape& shape, std::span<const float> matrix, std::span<const float> left,
                    std::span<float> right);
/// Adds weight * P times transposed Q to M.
void low_rank_add(const low_rank_shape& shape, std::span<const float> left, std::span<const float> right, float weight,
                  std::span<float> matrix);
/// Fills the zero columns of Q with normal random numbers from `draw`. Other columns do not change. It creates the
/// first Q, and later replaces columns that a gradient of zeros or of lower rank has set to zero.
void low_rank_refill(const low_rank_shape& shape, std::uint64_t draw, std::span<float> right);

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
