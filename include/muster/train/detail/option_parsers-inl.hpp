#pragma once

#include <muster/train/option_parsers.hpp>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace detail {

MUSTER_INLINE interval parse_interval(const std::string& text) {
  const auto space = text.find(' ');
  const std::string count = space == std::string::npos ? "1" : text.substr(0, space);
  std::string unit = space == std::string::npos ? text : text.substr(space + 1);
  if (unit.ends_with('s')) unit.pop_back();
  interval every;
  if (text == "auto") return {interval::automatic, 1};
  every.count = parse_number<std::uint64_t>(count).value_or(0);
  if (unit == "step")
    every.unit = interval::steps;
  else if (unit == "minute")
    every.unit = interval::minutes;
  else if (unit != "epoch")
    every.count = 0;
  if (every.count == 0) {
    throw configuration_error(
        "checkpoints cannot be written every '" + text +
        R"(' (the text is not a number of epochs, steps or minutes); write "2 epochs", "500 steps", )"
        R"("10 minutes" or "auto")");
  }
  return every;
}

MUSTER_INLINE metric_spec parse_metric(const std::string& text) {
  const auto space = text.rfind(' ');
  const std::string direction = space == std::string::npos ? "" : text.substr(space + 1);
  if (space == 0 || (direction != "up" && direction != "down")) {
    throw configuration_error(
        "metric '" + text +
        R"(' cannot be used (it is not the name of a report followed by "up" or "down"); write "val_accuracy up" )"
        R"(or "loss down")");
  }
  return {text.substr(0, space), direction == "up"};
}

}}}  // namespace muster::v0::detail
