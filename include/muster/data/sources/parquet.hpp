// The rows of Parquet files as a source. Part of muster::parquet, which requires libparquet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/column_options.hpp>
#include <muster/data/open.hpp>
#include <muster/data/records/writer.hpp>
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
/// covers the contents as in fixed_records, the options and the values of partitions. If create_parquet() stored the
/// names of classes, the labels of all files must be these classes.
///
/// Throws data_error, which names the file and the column, for a file that is no Parquet file or is truncated, for
/// files with different columns or types, and for a column whose type has no numbers. Throws configuration_error for a
/// column that does not exist.
[[nodiscard]] any_record_source open_parquet(const std::vector<std::string>& paths, const parquet_options& options);

/// Opens a file of Arrow's IPC format, or a stream of this format in a file, by the rules of open_arrow(): uncompressed
/// values are read in the mapped file. Its batches are validated. Part of muster::parquet, which requires libarrow.
/// Throws the errors of open_parquet().
[[nodiscard]] any_record_source open_arrow_file(const std::string& path, const parquet_options& options);

/// A writer of one Parquet file. The complete file exists, flushed to the disk, when commit() returns, and not before.
/// Used by one thread.
class parquet_writer {
 public:
  virtual ~parquet_writer() = default;
  /// Appends a record with a value for each label. Throws configuration_error for a record of another size, another
  /// number of labels, or a full disk.
  virtual void append(std::span<const std::byte> record, std::span<const float> labels) = 0;
  /// Completes the file. Returns its size in bytes. Throws configuration_error if there are no records, and if the disk
  /// is full. Then no file exists.
  virtual std::uint64_t commit() = 0;
};

/// Creates a Parquet file for records of a schema, with the columns of export_arrow(): numbers, lists with a fixed
/// size, bytes, and labels of float32. `columns` has the names of a table's columns, as in
/// any_record_source::columns(). Names of classes are stored in the file's metadata "muster.classes", a list in JSON. A
/// row group has about 16 MiB of records, and the writer holds a few times as many bytes. Pages have checksums. With
/// options.block_bytes pages of about this size are compressed with Zstandard.
///
/// Throws configuration_error for sparse records, for a type that Arrow lacks, for two columns with one name, for an
/// alignment in `options`, if the file cannot be written, and in a program without muster::parquet.
[[nodiscard]] std::unique_ptr<parquet_writer> create_parquet(std::string path, const record_schema& schema,
                                                             const detail::table_names& columns = {},
                                                             const record_file_options& options = {});

namespace detail {

using parquet_opener = any_record_source (*)(const std::vector<std::string>& paths, const parquet_options& options);
using arrow_opener = any_record_source (*)(const std::string& path, const parquet_options& options);
using parquet_creator = std::unique_ptr<parquet_writer> (*)(std::string path, const record_schema& schema,
                                                            const table_names& columns,
                                                            const record_file_options& options);
/// Sets the functions for "parquet:", "arrow:" and create_parquet(), if muster::parquet is linked. Thread safe.
void set_parquet_openers(parquet_opener parquet, arrow_opener arrow, parquet_creator create) noexcept;

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
