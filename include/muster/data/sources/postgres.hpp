// The rows of a PostgreSQL query: a source that is a database. In muster::postgres, which needs libpq.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <muster/data/dataset.hpp>
#include <muster/data/sources/csv.hpp>  // missing_values

namespace muster::inline v0 {

/// How the rows of a query are read.
struct postgres_options {
  std::string label = {};                ///< the column with the labels, by name; empty for none (labels are 0 then)
  std::vector<std::string> ignore = {};  ///< columns that are no features
  missing_values missing = missing_values::fail;  ///< what becomes of NULL and NaN
  std::size_t fetch = 10'000;                     ///< rows that the server sends at a time
};

/// Reads what a query selects into a dense dataset: a feature for each column that is neither label nor ignored. The
/// columns are numbers of any type, or booleans (0 and 1); each becomes the float that std::from_chars gives for the
/// text that PostgreSQL prints.
///
/// The query runs in a read-only transaction that sees one state of the database (repeatable read), behind a cursor of
/// the server, so that the client holds `fetch` rows and the dataset. Without ORDER BY the server may send rows in
/// another order the next time; the digest tells.
///
/// `connection` is what libpq takes: "host=db dbname=training user=reader" or "postgresql://reader@db/training". Only
/// the database's name becomes part of the dataset's name, never a password. Throws configuration_error when the server
/// cannot be reached, refuses the query or lacks a column, data_error with the row for a value that is no number.
[[nodiscard]] dataset read_postgres(const std::string& connection, const std::string& query,
                                    const postgres_options& how = {}, const read_options& options = {});

}  // namespace muster::inline v0
