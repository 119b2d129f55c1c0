// What a run prints.
#pragma once

#include <optional>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/tracker.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// The data, the options and the head of the table of epochs. `ranks` such as "4 ranks (shm)".
void print_header(const problem& data, const options& chosen, std::string_view ranks);
/// A line of that table: the epoch that ended last.
void print_epoch(const muster::tracker& tracker);
/// What came of it all. `final_accuracy`, of a training on servers, is that of the parameters when all workers have
/// finished.
void print_results(const muster::tracker& tracker, const options& chosen, double objective,
                   std::optional<double> final_accuracy);
/// The same and what decided it, in the file that is asked for.
void write_report(muster::tracker& report, const muster::context& context, const problem& data, const options& chosen,
                  double objective, std::optional<double> final_accuracy);

}  // namespace logistic
