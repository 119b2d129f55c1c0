// What a run prints.
#pragma once

#include <string_view>

#include <muster/core/env.hpp>
#include <muster/train/tracker.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// The data, the options and the head of the table of epochs. `ranks` such as "4 ranks (shm)".
void print_header(const problem& data, const options& chosen, std::string_view ranks);
/// A line of that table: the epoch that ended last.
void print_epoch(const muster::tracker& tracker);
/// What came of it all.
void print_results(const muster::tracker& tracker, const options& chosen, double objective);
/// What decided the numbers, for the report.
void annotate_resolved(muster::tracker& report, const muster::settings& settings, const options& chosen);

/// Throws muster::training_error when a loss is not finite any more.
void require_finite(double loss, std::uint64_t epoch, const options& chosen);

}  // namespace logistic
