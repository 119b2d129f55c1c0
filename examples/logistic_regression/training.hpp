// The training itself: what each rank does from the first step to the report.
#pragma once

#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// Collective. Trains and evaluates as `chosen` says; rank 0 prints, and writes the report if one is wanted. Throws
/// muster::training_error when the loss stops being finite.
void train(muster::context& context, muster::group& world, const problem& data, const options& chosen);

}  // namespace logistic
