// The rows of a PostgreSQL query as a source. Part of muster::postgres, which requires libpq.
#pragma once

#include <string>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/csv.hpp>  // missing_values

namespace muster { inline namespace v0 { namespace data {

/// Options of reading the rows of a query.
struct postgres_options {
  std::string label = {};                ///< name of the column with the labels; empty: no labels (all labels are 0)
  std::vector<std::string> ignore = {};  ///< columns that are not features
  missing_values missing = missing_values::fail;  ///< treatment of NULL and NaN
  /// Column with a distinct value in every row, which is not a feature. Rows are read on request, by ranges of
  /// the column.
  std::string key = {};
  /// Connecting is retried for this time, with increasing pauses. While ranges of the key are read, a connection is
  /// lost if the server sends nothing for this time.
  seconds timeout{60};
};

/// Reads the rows of a query into a dense dataset. Each column that is neither the label nor ignored becomes a feature.
/// The columns are numbers of any type, or booleans (0 and 1). The server rounds real numbers, integers and booleans to
/// floats. Doubles are rounded by the client. Other types, and all labels, become the float that std::from_chars
/// returns for PostgreSQL's text form.
///
/// The query runs in a read-only transaction with a consistent snapshot of the database (repeatable read) and is read
/// by binary COPY, row after row, so that the client holds only the dataset. Without ORDER BY the server may send rows
/// in a different order in the next run. The digest then differs.
///
/// `connection` is a connection string of libpq: "host=db dbname=training user=reader" or
/// "postgresql://reader@db/training". Only the database's name becomes part of the dataset's name, never a password.
/// Throws source_error if the server cannot be reached, and configuration_error if it refuses the connection or the
/// query, or lacks a column. Throws data_error with the row for a value that is not a number.
[[nodiscard]] dataset read_postgres(const std::string& connection, const std::string& query,
                                    const postgres_options& postgres = {}, const read_options& options = {});

/// Returns the rows as records that are not held in memory, in the order of `postgres.key`. The client holds an index
/// of key ranges, and the most recently read ranges, less than 256 MiB in total. Opening reads only the key, in one
/// snapshot of the database. Each range is read by binary COPY, on a connection of the reading thread, in a separate
/// transaction. Existing rows must not change during reading, but rows with greater keys may be added. After the loss
/// of a connection the client connects again and reads the range again. The digest covers the query, the number of rows
/// and the first key of every range. Throws the errors of read_postgres(), and configuration_error without a key.
/// Reading throws source_error if the server could not be reached for `postgres.timeout`, with the reason, and
/// data_error if a range has other rows than at opening.
[[nodiscard]] any_record_source postgres_source(const std::string& connection, const std::string& query,
                                                const postgres_options& postgres, const read_options& options = {});

namespace detail {

/// Opens a query: read_postgres(), or postgres_source() if there is a key.
using query_opener = opened_source (*)(const std::string& connection, const std::string& query,
                                       const postgres_options& postgres, const read_options& options);
/// Sets the function for "postgres:", if muster::postgres is linked. Thread safe.
void set_query_opener(query_opener opener) noexcept;

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
