// The data of a run, verified to be equal on every rank.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/data/dataset.hpp>

#include "options.hpp"

namespace logistic {

/// Samples with targets: +1 for the larger label, -1 for the smaller label.
struct labelled {
  muster::dataset data;
  std::vector<float> targets;
};

/// The data sets of a run. Immutable; ranks that are threads share one object.
struct problem {
  labelled train;
  labelled test;
  /// Number of features in the model: the maximum over both sets, because a test set may have fewer or more.
  std::size_t features = 0;
};

/// Reads or generates both sets. Throws muster::data_error when the training set does not have two classes, or when the
/// test set has a class that the training set lacks.
problem open_problem(const options& chosen);

/// Compares the ranks' data and options. Collective. Throws at every rank when ranks read different data
/// (muster::data_error) or have different options (muster::configuration_error).
void require_same_everywhere(muster::group& world, const problem& data, const options& chosen);

}  // namespace logistic
