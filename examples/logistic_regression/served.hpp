// The training with a parameter server: each worker at its own pace.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// Collective: the last `--servers` ranks keep the weights, the others train. Sparse data pulls and pushes the weights
/// of a step's features, dense data all. An epoch ends when the first worker has gone through its part of it; that one
/// evaluates, prints and reports, while the others go on. Throws muster::configuration_error at every rank for options
/// that do not go with it.
void train_served(muster::context& context, muster::group& world, const problem& data, const options& chosen);

}  // namespace logistic
