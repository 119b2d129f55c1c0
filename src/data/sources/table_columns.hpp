// Which columns of a table are features; private to the readers of tables.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include <muster/data/record_schema.hpp>  // table_names

namespace muster { inline namespace v0 { namespace detail {

/// What a column is that is no feature.
inline constexpr std::size_t ignored = std::numeric_limits<std::size_t>::max();
inline constexpr std::size_t label_place = ignored - 1;

struct table_columns {
  std::vector<std::size_t> places;  // the feature of each column, or one of the two above
  std::size_t features = 0;
  table_names names = {};
};

/// Plans the columns of a table with such `names` (empty where a column has no name); `label` (empty: there is none)
/// and `ignore` are names, or numbers from 0. `table` is for errors. Throws configuration_error for a column that is
/// not there, for a name that two columns have, and when no features are left.
[[nodiscard]] table_columns plan_columns(const std::vector<std::string>& names, const std::string& label,
                                         const std::vector<std::string>& ignore, const std::string& table);

}}}  // namespace muster::v0::detail
