// Tables of numbers as text: one sample a row, columns apart by commas or another character (RFC 4180).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/mapped_file.hpp>  // also so that a program with muster::zlib reads .gz

namespace muster { inline namespace v0 {

/// Whether the first row has names of columns.
enum class csv_header {
  automatic,  ///< it does when one of its fields is neither a number nor missing
  present,
  absent
};

/// What becomes of a field that is empty or one of NA, N/A, nan, NaN, NULL, null, None, ?
enum class missing_values {
  fail,  ///< an error, or a bad record with read_options::keep_bad_records
  zero,
  nan  ///< a quiet NaN, which the model sees
};

/// How a table of text is read.
struct csv_options {
  char delimiter = ',';  ///< also ';', a tab, a blank or '|'
  csv_header header = csv_header::automatic;
  /// The column with the labels: its name in the header, or its number from 0; empty for none (labels are 0 then).
  std::string label = {};
  /// Columns that are no features, each by name or number; they may hold any text.
  std::vector<std::string> ignore = {};
  missing_values missing = missing_values::fail;
};

/// Reads a CSV file, plain or compressed, into a dense dataset: a feature for each column that is neither label nor
/// ignored, in their order.
///
/// Numbers are read as std::from_chars<float> reads them (a leading '+' is allowed, one too small for a float is zero,
/// infinities are refused). Fields may be quoted, with "" for a quote, and a quoted one may hold delimiters and
/// newlines; blanks around a field do not count; blank lines are skipped; CRLF, a byte order mark and a missing newline
/// at the end are all right. Every row has as many fields as the first.
///
/// Holds the text and the result, and no more; reads in parallel. Throws data_error naming file, line and column of the
/// first thing that is wrong, and configuration_error for a column that is not there and for the sparse layout.
[[nodiscard]] dataset read_csv(const std::string& path, const csv_options& csv = {}, const read_options& options = {});

/// The same from text in memory; `name` stands for the file in errors and becomes the dataset's name.
[[nodiscard]] dataset parse_csv(std::string_view text, const std::string& name, const csv_options& csv = {},
                                const read_options& options = {});

namespace detail {

class text_format;

/// How open_source() reads a table that is this text; `file` is for errors.
[[nodiscard]] std::shared_ptr<const text_format> format_of_csv(std::string_view text, const std::string& file,
                                                               const csv_options& csv, const read_options& options);

}  // namespace detail

}}  // namespace muster::v0
