// The output of a training.
#pragma once

#include <cstdint>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/tracker.hpp>

#include "network.hpp"
#include "options.hpp"

namespace images {

/// Prints the model, the data and the head of the table of epochs. `ranks` has a form such as "4 ranks (shm)".
void print_header(const options& chosen, nn::network<float>& net, std::string_view data, std::string_view ranks);
/// Prints the table's line for the epoch that ended last.
void print_epoch(const muster::tracker& tracker, std::uint64_t epoch, double top5, double rate);
/// Prints the results.
void print_results(const muster::tracker& tracker, const options& chosen, double accuracy, double top5);
/// Writes the tracker's report, if requested.
void write_report(muster::tracker& tracker, const muster::context& context, const options& chosen,
                  std::string_view data, double top5);

}  // namespace images
