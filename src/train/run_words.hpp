// What words of train_options say.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace muster { inline namespace v0 { namespace detail {

/// train_options::checkpoint_every.
struct interval {
  enum { epochs, steps, minutes, automatic } unit = epochs;
  std::uint64_t count = 1;
};

/// Throws configuration_error for what is no interval.
[[nodiscard]] interval parse_interval(const std::string& text);

/// "val_accuracy up": a report, and whether more of it is better.
struct metric_of {
  std::string name;
  bool up = true;

  [[nodiscard]] bool is_better(double value, double than) const noexcept {
    return std::isnan(than) || (up ? value > than : value < than);
  }
};

/// Throws configuration_error for what is no metric.
[[nodiscard]] metric_of parse_metric(const std::string& text);

}}}  // namespace muster::v0::detail
