// The training: each rank's work from the first step to the report.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// Trains and evaluates according to `chosen`. Collective. Rank 0 prints, and writes the report if requested. Throws
/// muster::training_error when the loss is no longer finite.
void train(muster::context& context, muster::group& world, const problem& data, const options& chosen);

}  // namespace logistic
