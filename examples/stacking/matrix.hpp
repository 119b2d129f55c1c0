// Matrices as .npy files, the format in memory, on the disk and in messages.
#pragma once

#include <Eigen/Core>
#include <string>
#include <string_view>

namespace stacked {

using matrix = Eigen::MatrixXd;
using column = Eigen::VectorXd;

/// Writes version 1 of the format, in column-major order.
[[nodiscard]] std::string to_npy(const Eigen::Ref<const matrix>& values);

/// Reads a matrix of doubles, or a vector as one column. Throws muster::data_error that begins with `name`.
[[nodiscard]] matrix from_npy(std::string_view bytes, const std::string& name);

/// Features, and labels that are 0 or 1.
struct dataset {
  matrix features;
  column labels;
};

/// Reads a dataset whose last column has the labels. Throws as `from_npy`, and for other labels.
[[nodiscard]] dataset to_dataset(std::string_view npy, const std::string& name);

}  // namespace stacked
