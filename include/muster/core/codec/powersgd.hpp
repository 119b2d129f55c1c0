// PowerSGD: the sum of the matrices of all ranks as a product of two thin ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster { inline namespace v0 {

/// A tensor as PowerSGD sees it: `rows` (its first extents) by `columns` (the others), approximated by `rank` columns.
struct low_rank_shape {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t rank = 0;  ///< as the user asks for; may exceed the sides of the matrix

  /// Columns of P and of Q: `rank`, limited to the smaller side of the matrix.
  [[nodiscard]] constexpr std::size_t used() const noexcept {
    const std::size_t side = rows < columns ? rows : columns;
    return rank < side ? rank : side;
  }
  [[nodiscard]] constexpr std::size_t left_size() const noexcept { return used() * rows; }      ///< of P, in floats
  [[nodiscard]] constexpr std::size_t right_size() const noexcept { return used() * columns; }  ///< of Q, in floats
  /// Whether the two are smaller than the matrix; otherwise, as for what is one-dimensional, it is sent as it is.
  [[nodiscard]] constexpr bool pays() const noexcept {
    return rows > 1 && columns > 1 && left_size() + right_size() < rows * columns;
  }
};

/// The steps of PowerSGD (Vogels, Karimireddy and Jaggi 2019, https://arxiv.org/abs/1905.13727, algorithm 1) for one
/// matrix M, row by row in memory, which is the gradient plus the residual of error feedback:
///
///     low_rank_left(shape, M, Q, P);      allreduce(P, sum)      P = sum of M Q
///     orthonormalise(shape, P);                                  the same bits at every rank
///     low_rank_right(shape, M, P, Q);                            Q = transposed M times P
///     residual = M; low_rank_add(shape, P, Q, -1, residual)      what this rank's part lacks
///     allreduce(Q, sum)                                          P transposed Q stands for the sum of M
///     low_rank_add(shape, P, Q, 1, zeros)
///     low_rank_restart(shape, draw, Q)                           the Q of the next step: warm start
///
/// P and Q hold `used()` columns one after the other, of `rows` and `columns` floats. The residual is that of this
/// rank's own projection, so that the residuals of all ranks sum to what the result lacks and none of them drifts away.
/// The spans must have the sizes of the shape (configuration_error) and do not overlap. Same bits on every machine.

/// P = M Q; reads the matrix once.
void low_rank_left(const low_rank_shape& shape, std::span<const float> matrix, std::span<const float> right,
                   std::span<float> left);
/// Makes the columns of P orthogonal and of length 1 (Gram-Schmidt, each twice). A column that depends on those before
/// it becomes zeros.
void orthonormalise(const low_rank_shape& shape, std::span<float> left);
/// Q = transposed M times P; reads the matrix once.
void low_rank_right(const low_rank_shape& shape, std::span<const float> matrix, std::span<const float> left,
                    std::span<float> right);
/// M += weight * P transposed Q.
void low_rank_add(const low_rank_shape& shape, std::span<const float> left, std::span<const float> right, float weight,
                  std::span<float> matrix);
/// Fills the columns of Q that are zeros with normal random numbers of `draw`: the first Q, and later a way out of
/// columns that a gradient of zeros or of a lower rank has wiped out.
void low_rank_restart(const low_rank_shape& shape, std::uint64_t draw, std::span<float> right);

}}  // namespace muster::v0
