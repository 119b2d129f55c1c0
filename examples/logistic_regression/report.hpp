// The output of a run.
#pragma once

#include <optional>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/tracker.hpp>

#include "options.hpp"
#include "problem.hpp"

namespace logistic {

/// Prints the data, the options and the head of the table of epochs. `ranks` has a form such as "4 ranks (shm)".
void print_header(const problem& data, const options& chosen, std::string_view ranks);
/// Prints the table's line for the epoch that ended last.
void print_epoch(const muster::tracker& tracker);
/// Prints the results. `final_accuracy`, for training on servers, is the accuracy of the parameters after all workers
/// finished.
void print_results(const muster::tracker& tracker, const options& chosen, double objective,
                   std::optional<double> final_accuracy);
/// Writes the results and the settings that determined them to the file of --json.
void write_report(muster::tracker& report, const muster::context& context, const problem& data, const options& chosen,
                  double objective, std::optional<double> final_accuracy);

}  // namespace logistic
