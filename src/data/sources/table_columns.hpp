// The assignment of a table's columns to features and the label. Private to the readers of tables.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <muster/data/record_schema.hpp>  // table_names

namespace muster { inline namespace v0 { namespace detail {

/// The place of a column that is not a feature.
inline constexpr std::size_t ignored = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t label_place = ignored - 1;

struct table_columns {
  std::vector<std::size_t> roles;  // each column's feature number, or `ignored` or `label_place`
  std::size_t features = 0;
  table_names names = {};
};

/// Plans the columns of a table with these `names`. The name of a column without name is empty. `label` (empty: no
/// label) and `ignore` are names, or numbers from 0. `table` is for errors. Throws configuration_error for a missing
/// column, for a name that two columns have, and if no features remain.
[[nodiscard]] table_columns plan_columns(const std::vector<std::string>& names, const std::string& label,
                                         const std::vector<std::string>& ignore, const std::string& table);

}}}  // namespace muster::v0::detail
