// The data of a run, checked and the same at every rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/data/dataset.hpp>

#include "options.hpp"

namespace logistic {

/// Samples with targets: +1 for the larger of the two labels, -1 for the other.
struct labelled {
  muster::dataset data;
  std::vector<float> targets;
};

/// Immutable; ranks that are threads share one.
struct problem {
  labelled train;
  labelled test;
  std::size_t features = 0;  ///< of the model: those of the wider set, for a test set may name fewer or more
};

/// Reads or generates both sets. Throws muster::data_error when the training set has not two classes or the test set
/// has one that the training set lacks.
problem open_problem(const options& chosen);

/// Collective. Throws at every rank when the ranks did not read the same data (muster::data_error) or were not given
/// the same options (muster::configuration_error).
void require_same_everywhere(muster::group& world, const problem& data, const options& chosen);

}  // namespace logistic
