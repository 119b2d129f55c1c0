// What a training prints and writes.
#pragma once

#include <cstdint>
#include <string_view>

#include <muster/comm/context.hpp>
#include <muster/train/tracker.hpp>

#include "network.hpp"
#include "options.hpp"

namespace images {

/// The model, the data and the head of the table of epochs. `ranks` such as "4 ranks (shm)".
void print_header(const options& chosen, nn::network<float>& net, std::string_view data, std::string_view ranks);
/// A line of that table: the epoch that ended last.
void print_epoch(const muster::tracker& tracker, std::uint64_t epoch, double top5, double rate);
/// What came of it all.
void print_results(const muster::tracker& tracker, const options& chosen, double accuracy, double top5);
/// The tracker's report, if one is wanted.
void write_report(muster::tracker& tracker, const muster::context& context, const options& chosen,
                  std::string_view data, double top5);

}  // namespace images
