#include "table_columns.hpp"

#include <algorithm>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace detail {

table_columns plan_columns(const std::vector<std::string>& names, const std::string& label,
                           const std::vector<std::string>& ignore, const std::string& table) {
  table_columns plan{std::vector<std::size_t>(names.size()), 0};
  const auto name_of = [&](std::size_t column) {
    return names[column].empty() ? std::to_string(column) : names[column];
  };
  const auto mark = [&](const std::string& wanted, std::size_t as) {
    const auto found = std::find(names.begin(), names.end(), wanted);
    const auto number = parse_number<std::size_t>(wanted);
    if (!wanted.empty() && found != names.end()) {
      if (std::find(found + 1, names.end(), wanted) != names.end()) {
        throw configuration_error("two columns of " + table + " have the name '" + wanted +
                                  "' (so that it cannot be told which is meant); rename one of them");
      }
      plan.places[static_cast<std::size_t>(found - names.begin())] = as;
    } else if (number && *number < names.size()) {
      plan.places[*number] = as;
    } else {
      const bool named = std::ranges::any_of(names, [](const std::string& name) { return !name.empty(); });
      const auto meant = closest(wanted, names);
      throw configuration_error(
          "there is no column '" + wanted + "' in " + table + " (it has " + std::to_string(names.size()) +
          (named ? "" : ", without names") + "); " +
          (meant && named ? "did you mean '" + *meant + "'?" : "give a name of the header or a number from 0"));
    }
  };
  for (const std::string& name : ignore) mark(name, ignored);
  if (!label.empty()) mark(label, label_place);
  for (std::size_t column = 0; column < names.size(); ++column) {
    std::size_t& place = plan.places[column];
    if (place == label_place) plan.names.label = name_of(column);
    if (place >= label_place) continue;
    place = plan.features++;
    plan.names.features.push_back(name_of(column));
  }
  if (plan.features == 0) {
    throw configuration_error(table + " has no features (each column is the label or ignored); leave one");
  }
  return plan;
}

}}}  // namespace muster::v0::detail
