// The assignment of a table's columns to features and the label. Private to the readers of tables.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/data/record_schema.hpp>  // table_names

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The place of a column that is not a feature.
inline constexpr std::size_t ignored_place = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t label_place = ignored_place - 1;

struct table_columns {
  std::vector<std::size_t> roles;  // each column's feature number, or `ignored_place` or `label_place`
  std::size_t features = 0;
  table_names names = {};
};

/// Plans the columns of a table with these `names`. The name of a column without name is empty. `label` (empty: no
/// label) and `ignore` are names, or numbers from 0. `table` is for errors. Throws configuration_error for a missing
/// column, for a name that two columns have, and if no features remain.
[[nodiscard]] table_columns plan_columns(const std::vector<std::string>& names, const std::string& label,
                                         const std::vector<std::string>& ignore, const std::string& table);

inline table_columns plan_columns(const std::vector<std::string>& names, const std::string& label,
                                  const std::vector<std::string>& ignore, const std::string& table) {
  table_columns plan{std::vector<std::size_t>(names.size()), 0};
  const auto name_of = [&](std::size_t column) {
    return names[column].empty() ? std::to_string(column) : names[column];
  };
  const auto mark = [&](const std::string& column_name, std::size_t new_place) {
    const auto found = std::find(names.begin(), names.end(), column_name);
    const auto number = parse_number<std::size_t>(column_name);
    if (!column_name.empty() && found != names.end()) {
      if (std::find(found + 1, names.end(), column_name) != names.end()) {
        throw configuration_error("two columns of " + table + " have the name '" + column_name +
                                  "' (the name is ambiguous); rename one column");
      }
      plan.roles[static_cast<std::size_t>(found - names.begin())] = new_place;
    } else if (number && *number < names.size()) {
      plan.roles[*number] = new_place;
    } else {
      const bool has_names = std::ranges::any_of(names, [](const std::string& name) { return !name.empty(); });
      const auto suggestion = closest(column_name, names);
      throw configuration_error("there is no column '" + column_name + "' in " + table + " (it has " +
                                std::to_string(names.size()) + (has_names ? "" : ", without names") + "); " +
                                (suggestion && has_names ? "did you mean '" + *suggestion + "'?"
                                                         : "name a column of the header, or its number from 0"));
    }
  };
  for (const std::string& name : ignore) mark(name, ignored_place);
  if (!label.empty()) mark(label, label_place);
  for (std::size_t column = 0; column < names.size(); ++column) {
    std::size_t& place = plan.roles[column];
    if (place == label_place) plan.names.label = name_of(column);
    if (place >= label_place) continue;
    place = plan.features++;
    plan.names.features.push_back(name_of(column));
  }
  if (plan.features == 0) {
    throw configuration_error(table + " has no features (each column is the label or ignored); keep a column");
  }
  return plan;
}

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
