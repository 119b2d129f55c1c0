// JSON lines (https://jsonlines.org): one sample a line, an object with numbers.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/csv.hpp>  // missing_values

namespace muster { inline namespace v0 { namespace data {

/// Options of reading JSON lines.
struct jsonl_options {
  std::string label = {};                         ///< key of the labels. Empty: no labels (all labels are 0)
  std::vector<std::string> ignore = {};           ///< keys that are not features. Their values may be of any kind
  missing_values missing = missing_values::fail;  ///< treatment of a feature that is null, or whose key is absent
  /// Names of the classes, if labels are texts: a label is the number of its name in this list.
  std::vector<std::string> classes = {};
};

/// Reads a file of JSON lines, plain or compressed, into a dense dataset. The keys of the first 100 lines, in the order
/// in which the lines have them, are columns as in read_csv(). A value is a number, true (1), false (0), or an array of
/// such values, also of arrays, which always has the same number of values.
///
/// Blank lines are skipped. Throws data_error naming file, line and column of the first line that is no object, has a
/// key twice or an unknown key, or has a text or an object in place of a number. Throws configuration_error for a key
/// that the lines do not have, and for the sparse layout.
[[nodiscard]] dataset read_jsonl(const std::string& path, const jsonl_options& jsonl = {},
                                 const read_options& options = {});

namespace detail {

/// Returns the format by which open_source() reads JSON lines with this text. `file` is used in errors.
[[nodiscard]] std::shared_ptr<const text_format> format_of_jsonl(std::string_view text, const std::string& file,
                                                                 const jsonl_options& jsonl,
                                                                 const read_options& options);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
