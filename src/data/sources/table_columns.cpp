#include "table_columns.hpp"

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0::detail {

table_columns plan_columns(const std::vector<std::string>& names, std::size_t count, const std::string& label,
                           const std::vector<std::string>& ignore, const std::string& table) {
  table_columns plan{std::vector<std::size_t>(count), 0};
  const auto mark = [&](const std::string& wanted, std::size_t as) {
    const auto found = std::find(names.begin(), names.end(), wanted);
    const auto number = parse_number<std::size_t>(wanted);
    if (found != names.end()) {
      plan.places[static_cast<std::size_t>(found - names.begin())] = as;
    } else if (number && *number < count) {
      plan.places[*number] = as;
    } else {
      const auto meant = closest(wanted, names);
      throw configuration_error(
          "there is no column '" + wanted + "' in " + table + " (it has " + std::to_string(count) +
          (names.empty() ? ", without names" : "") + "); " +
          (meant ? "did you mean '" + *meant + "'?" : "give a name of the header or a number from 0"));
    }
  };
  for (const std::string& name : ignore) mark(name, ignored);
  if (!label.empty()) mark(label, label_place);
  for (std::size_t& place : plan.places) {
    if (place < label_place) place = plan.features++;
  }
  if (plan.features == 0) {
    throw configuration_error(table + " has no features (each column is the label or ignored); leave one");
  }
  return plan;
}

}  // namespace muster::inline v0::detail
