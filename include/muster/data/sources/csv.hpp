// Tables of numbers as text: one sample a row, with columns separated by commas or another character (RFC 4180).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The presence of column names in the first row.
enum class csv_header {
  automatic,  ///< decided from the first row, see read_csv()
  present,
  absent
};

/// The treatment of a field that is empty, NA, N/A, nan, NaN, NULL, null, None or ?
enum class missing_values {
  fail,  ///< an error, or a bad record with read_options::keep_bad_records
  zero,
  nan  ///< a quiet NaN, which is passed to the model
};

/// Options of reading a table of text.
struct csv_options {
  char delimiter = ',';  ///< alternatives: ';', a tab, a blank or '|'
  csv_header header = csv_header::automatic;
  /// Column with the labels: its name in the header, or its number from 0. Empty: no labels (all labels are 0).
  std::string label = {};
  /// Columns that are not features, each by name or number. They may contain any text.
  std::vector<std::string> ignore = {};
  missing_values missing = missing_values::fail;
};

/// Reads a CSV file, plain or compressed, into a dense dataset. Each column that is neither the label nor ignored
/// becomes a feature, in column order.
///
/// Numbers are read like std::from_chars<float> (a leading '+' is allowed, a number too small for a float is zero,
/// infinities are refused). Fields may be quoted, with "" for a quote. A quoted field may contain delimiters and
/// newlines. Blanks around a field are ignored. Blank lines are skipped. CRLF, a byte order mark and a missing newline
/// at the end are accepted. Every row must have as many fields as the first row. With csv_header::automatic the first
/// row has names if it has a name from `label` or `ignore`, if it has an empty field and then 0, 1, 2 and so on, or if
/// it has at least as many words as numbers (with a single word: no numbers).
///
/// Holds only the text and the result in memory. Reads in parallel. Throws data_error naming file, line and column of
/// the first error. Throws configuration_error for a missing column and for the sparse layout.
[[nodiscard]] dataset read_csv(const std::string& path, const csv_options& csv = {}, const read_options& options = {});

/// Parses text in memory in the same way. `name` replaces the file name in errors and becomes the dataset's name.
[[nodiscard]] dataset parse_csv(std::string_view text, const std::string& name, const csv_options& csv = {},
                                const read_options& options = {});

namespace detail {

class text_format;

/// Returns the format by which open_source() reads a table with this text. `file` is used in errors.
[[nodiscard]] std::shared_ptr<const text_format> format_of_csv(std::string_view text, const std::string& file,
                                                               const csv_options& csv, const read_options& options);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
