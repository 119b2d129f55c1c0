// The choice of the columns of typed tables, such as Parquet files and Arrow tables.
#pragma once

#include <string>
#include <vector>

#include <muster/data/sources/csv.hpp>  // missing_values

namespace muster { inline namespace v0 { namespace data {

/// The columns of a typed table that make a record, and the treatment of their values.
struct column_options {
  std::string label = {};  ///< name of the column with the labels; empty: records have no labels
  /// Names of the classes, if the label is a text: a label is the number of its name in this list.
  std::vector<std::string> classes = {};
  std::vector<std::string> columns = {};          ///< columns that are features; empty: all but `label` and `ignore`
  std::vector<std::string> ignore = {};           ///< columns that are not features
  missing_values missing = missing_values::fail;  ///< treatment of null, and of NaN among the numbers of a feature
};

}}}  // namespace muster::v0::data
