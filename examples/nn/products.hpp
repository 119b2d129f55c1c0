// Products of matrices, by Eigen: row-major, and without overlap of result and operands. Compiled once for all layers.
#pragma once

#include <cstddef>

namespace nn {

/// Computes c = a b: a is rows x depth, b is depth x columns.
template <class T>
void multiply(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns);

/// Computes c = a b^T: a is rows x depth, b is columns x depth.
template <class T>
void multiply_transposed(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns);

/// Computes c += a^T b: a is depth x rows, b is depth x columns.
template <class T>
void add_transposed_multiply(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns);

/// Adds `bias` to each row of c (rows x columns).
template <class T>
void add_to_rows(const T* bias, T* c, std::size_t rows, std::size_t columns);

/// Adds the rows of a (rows x columns) to `sum`.
template <class T>
void add_rows(const T* a, T* sum, std::size_t rows, std::size_t columns);

}  // namespace nn
