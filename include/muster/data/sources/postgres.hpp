// The rows of a PostgreSQL query: a source that is a database. In muster::postgres, which needs libpq.
#pragma once

#include <string>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/open.hpp>
#include <muster/data/sources/csv.hpp>  // missing_values

namespace muster { inline namespace v0 {

/// How the rows of a query are read.
struct postgres_options {
  std::string label = {};                ///< the column with the labels, by name; empty for none (labels are 0 then)
  std::vector<std::string> ignore = {};  ///< columns that are no features
  missing_values missing = missing_values::fail;  ///< what becomes of NULL and NaN
  /// A column with another value in every row, which is no feature: rows are read by ranges of it when they are wanted.
  std::string key = {};
  /// Of these ranges: a server that sends nothing for so long is lost, and a lost one is tried again for so long, with
  /// pauses that grow.
  seconds timeout{60};
};

/// Reads what a query selects into a dense dataset: a feature for each column that is neither label nor ignored. The
/// columns are numbers of any type, or booleans (0 and 1). The server rounds real numbers, integers and booleans to
/// floats; doubles are rounded here, and others become the float that std::from_chars gives for the text that
/// PostgreSQL prints.
///
/// The query runs in a read-only transaction that sees one state of the database (repeatable read) and is read by
/// binary COPY, row after row, so that the client holds the dataset alone. Without ORDER BY the server may send rows in
/// another order the next time; the digest tells.
///
/// `connection` is what libpq takes: "host=db dbname=training user=reader" or "postgresql://reader@db/training". Only
/// the database's name becomes part of the dataset's name, never a password. Throws configuration_error when the server
/// cannot be reached, refuses the query or lacks a column, data_error with the row for a value that is no number.
[[nodiscard]] dataset read_postgres(const std::string& connection, const std::string& query,
                                    const postgres_options& how = {}, const read_options& options = {});

/// The same as records that are not held, in the order of `how.key`: an index of ranges of the key is, and the ranges
/// that were read last, less than 256 MiB in all. Opening looks at the key alone, in one state of the database. Each
/// range is read by binary COPY, on a connection of the thread that wants it, in a transaction of its own: the rows
/// must not change meanwhile, but others with greater keys may come. A connection that is lost is made again, and the
/// range read again. The digest is of the query, the number of rows and the keys where ranges begin. Throws what
/// read_postgres() throws, and configuration_error without a key; reading throws data_error when the server could not
/// be reached for `how.timeout`, with the reason, and when a range has other rows than at opening.
[[nodiscard]] any_record_source postgres_source(const std::string& connection, const std::string& query,
                                                const postgres_options& how, const read_options& options = {});

namespace detail {

/// Opens a query: read_postgres(), or postgres_source() with a key.
using query_opener = opened_source (*)(const std::string& connection, const std::string& query,
                                       const postgres_options& how, const read_options& options);
/// Sets what opens "postgres:", where it is linked. Thread safe.
void set_query_opener(query_opener opener) noexcept;

}  // namespace detail

}}  // namespace muster::v0
