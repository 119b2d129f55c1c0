// The columns of Parquet files, readers of their values, and the writer of a file. Private to muster::parquet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <parquet/column_reader.h>
#include <parquet/schema.h>

#include <muster/data/sources/blocked_records.hpp>
#include <muster/data/sources/column_values.hpp>
#include <muster/data/sources/parquet.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Returns the columns of a file in the order of its schema. The index of a column that is no leaf is -1.
[[nodiscard]] std::vector<table_column> columns_of(const parquet::SchemaDescriptor& schema);

/// The rows of a block that readers of columns fill.
struct parquet_rows : column_rows {
  record_block& block;
};

/// A reader of the values of a column in a row group, row after row.
class parquet_column_reader {
 public:
  virtual ~parquet_column_reader() = default;
  /// Reads the next rows.count values into `rows`. Throws parquet::ParquetException for damaged pages, and if the
  /// row group ends.
  virtual void read(parquet_rows& rows) = 0;
};

/// Opens a column of row group `group` at row `start`. Pages before the row are not decompressed, except those of
/// lists.
[[nodiscard]] std::unique_ptr<parquet_column_reader> read_column(const table_column& column,
                                                                 const parquet::ColumnDescriptor& leaf, int group,
                                                                 std::unique_ptr<parquet::PageReader> pages,
                                                                 std::uint64_t start, const column_options& options);

/// Returns the shape of the first list of a column without missing values, or an empty shape if there is none.
[[nodiscard]] std::vector<std::uint64_t> shape_of_lists(const parquet::ColumnDescriptor& leaf,
                                                        std::unique_ptr<parquet::PageReader> pages);

/// The key of a file's metadata for the names of the classes that the labels number: a list of texts in JSON.
inline constexpr std::string_view classes_key = "muster.classes";

/// Creates a file. See create_parquet().
[[nodiscard]] std::unique_ptr<parquet_writer> open_parquet_writer(std::string path, const record_schema& schema,
                                                                  const table_names& columns,
                                                                  const record_file_options& options);

}}}}  // namespace muster::v0::data::detail
