// Which columns of a table are features; private to the readers of tables.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace muster::inline v0::detail {

/// What a column is that is no feature.
inline constexpr std::size_t ignored = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t label_place = ignored - 1;

struct table_columns {
  std::vector<std::size_t> places;  // the feature of each column, or one of the two above
  std::size_t features = 0;
};

/// The columns of a table, those of `label` (empty: none) and `ignore` found by name or by number from 0. `table` is
/// for errors. Throws configuration_error for a column that is not there, and when no features are left.
[[nodiscard]] table_columns plan_columns(const std::vector<std::string>& names, std::size_t count,
                                         const std::string& label, const std::vector<std::string>& ignore,
                                         const std::string& table);

}  // namespace muster::inline v0::detail
