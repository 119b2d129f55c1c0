#include "products.hpp"

#include <Eigen/Core>

namespace nn {
namespace {

template <class T>
using matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
Eigen::Map<matrix<T>> map(T* data, std::size_t rows, std::size_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}
template <class T>
Eigen::Map<const matrix<T>> map(const T* data, std::size_t rows, std::size_t columns) {
  return {data, static_cast<Eigen::Index>(rows), static_cast<Eigen::Index>(columns)};
}

}  // namespace

template <class T>
void multiply(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns) {
  map(c, rows, columns).noalias() = map(a, rows, depth) * map(b, depth, columns);
}

template <class T>
void multiply_transposed(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns) {
  map(c, rows, columns).noalias() = map(a, rows, depth) * map(b, columns, depth).transpose();
}

template <class T>
void add_transposed_multiply(const T* a, const T* b, T* c, std::size_t rows, std::size_t depth, std::size_t columns) {
  map(c, rows, columns).noalias() += map(a, depth, rows).transpose() * map(b, depth, columns);
}

template <class T>
void add_to_rows(const T* bias, T* c, std::size_t rows, std::size_t columns) {
  map(c, rows, columns).rowwise() += map(bias, 1, columns).row(0);
}

template <class T>
void add_rows(const T* a, T* sum, std::size_t rows, std::size_t columns) {
  // Eigen's order of summation depends on the alignment of the numbers.
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t c = 0; c < columns; ++c) sum[c] += a[row * columns + c];
  }
}

template void multiply(const float*, const float*, float*, std::size_t, std::size_t, std::size_t);
template void multiply(const double*, const double*, double*, std::size_t, std::size_t, std::size_t);
template void multiply_transposed(const float*, const float*, float*, std::size_t, std::size_t, std::size_t);
template void multiply_transposed(const double*, const double*, double*, std::size_t, std::size_t, std::size_t);
template void add_transposed_multiply(const float*, const float*, float*, std::size_t, std::size_t, std::size_t);
template void add_transposed_multiply(const double*, const double*, double*, std::size_t, std::size_t, std::size_t);
template void add_to_rows(const float*, float*, std::size_t, std::size_t);
template void add_to_rows(const double*, double*, std::size_t, std::size_t);
template void add_rows(const float*, float*, std::size_t, std::size_t);
template void add_rows(const double*, double*, std::size_t, std::size_t);

}  // namespace nn
