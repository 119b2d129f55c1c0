// The rows of Parquet files as a source. Part of muster::parquet, which requires libparquet.
#pragma once

#include <string>
#include <vector>

#include <muster/data/column_options.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/http.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Options of open_parquet().
struct parquet_options : column_options {
  int threads = 0;  ///< number of threads that open files; 0: as many as available
  http_options http = {};
};

/// Opens Parquet files as one source, in the order of `paths`. A folder stands for the files in it and in its folders
/// whose names end with ".parquet", ".parq" or ".pq", in the order of their paths' bytes. Folders named KEY=VALUE (hive
/// partitions) are columns. A column in a struct has the name "STRUCT.COLUMN".
///
/// Numbers of any type, decimals and booleans are features: a field `features` of float32, as in a table of CSV. A
/// column of lists (also of lists of lists) and a column of values with a fixed number of bytes are fields of their
/// own, with the column's type. The lists of a column have the shape of its first list. A column of bytes of any length
/// is the whole record (record_form::bytes), without other columns.
///
/// Opening reads the footers. Records are decoded in blocks, of which 112 MiB are cached. The order
/// block_window decodes each block once an epoch. A row is a bad record if a value is missing (see `missing`), is
/// not a label, is larger than a float32 or the column's type can hold, or if a list has another shape. The digest
/// covers the contents as in fixed_records, the options and the values of partitions.
///
/// Throws data_error, which names the file and the column, for a file that is no Parquet file or is truncated, for
/// files with different columns or types, and for a column whose type has no numbers. Throws configuration_error for a
/// column that does not exist.
[[nodiscard]] any_record_source open_parquet(const std::vector<std::string>& paths, const parquet_options& options);

/// Opens a file of Arrow's IPC format, or a stream of this format in a file, by the rules of open_arrow(): uncompressed
/// values are read in the mapped file. Its batches are validated. Part of muster::parquet, which requires libarrow.
/// Throws the errors of open_parquet().
[[nodiscard]] any_record_source open_arrow_file(const std::string& path, const parquet_options& options);

namespace detail {

using parquet_opener = any_record_source (*)(const std::vector<std::string>& paths, const parquet_options& options);
using arrow_opener = any_record_source (*)(const std::string& path, const parquet_options& options);
/// Sets the functions for "parquet:" and "arrow:", if muster::parquet is linked. Thread safe.
void set_parquet_openers(parquet_opener parquet, arrow_opener arrow) noexcept;

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
