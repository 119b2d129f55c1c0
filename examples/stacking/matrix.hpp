// Matrices as .npy files, which is what they are in memory, on the disk and on the way.
#pragma once

#include <Eigen/Core>
#include <string>
#include <string_view>

namespace stacked {

using matrix = Eigen::MatrixXd;
using column = Eigen::VectorXd;

/// Version 1 of the format, columns one after the other.
[[nodiscard]] std::string to_npy(const Eigen::Ref<const matrix>& values);

/// A matrix, or a vector as one column, of doubles. Throws muster::data_error that begins with `name`.
[[nodiscard]] matrix from_npy(std::string_view bytes, const std::string& name);

/// Features, and labels that are 0 or 1.
struct dataset {
  matrix features;
  column labels;
};

/// The last column are the labels. Throws as `from_npy`, and for other labels.
[[nodiscard]] dataset to_dataset(std::string_view npy, const std::string& name);

}  // namespace stacked
