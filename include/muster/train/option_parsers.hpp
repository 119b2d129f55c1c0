// Parsers of texts in train_options.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace muster { inline namespace v0 { namespace detail {

/// A parsed train_options::checkpoint_every.
struct interval {
  enum { epochs, steps, minutes, automatic } unit = epochs;
  std::uint64_t count = 1;
};

/// Parses an interval. Throws configuration_error for an invalid text.
[[nodiscard]] interval parse_interval(const std::string& text);

/// A parsed metric such as "val_accuracy up": the name of a report, and true if larger values are better.
struct metric_spec {
  std::string name;
  bool up = true;

  [[nodiscard]] bool is_better(double value, double than) const noexcept {
    return std::isnan(than) || (up ? value > than : value < than);
  }
};

/// Parses a metric. Throws configuration_error for an invalid text.
[[nodiscard]] metric_spec parse_metric(const std::string& text);

}}}  // namespace muster::v0::detail
