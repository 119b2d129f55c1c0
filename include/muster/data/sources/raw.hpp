// Files that contain only records of a fixed size, perhaps after a header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The layout of the records in a raw file. All numbers have this machine's byte order.
struct raw_layout {
  /// A label within each record.
  struct label {
    std::string name = "label";
    dtype type = dtype::uint8;
    std::uint64_t offset = 0;  ///< in bytes from the start of the record
  };
  dtype type = dtype::uint8;         ///< type of the features
  std::vector<std::uint64_t> shape;  ///< shape of the features of a record, {3, 32, 32}
  std::uint64_t skip = 0;            ///< bytes before the first record
  std::uint64_t count = 0;           ///< number of records in each file; 0: up to the end of the file
  std::uint64_t offset = 0;          ///< offset of the features in a record
  /// distance from one record to the next; 0: up to the end of the features or of the last label
  std::uint64_t record_bytes = 0;
  std::vector<label> labels = {};
};

/// Opens one or more raw files with the same layout. The records are in the order of the paths. The files are mapped.
/// Throws configuration_error for a layout that does not fit into its record, and data_error for a file that
/// ends before its last record, or, without `count`, within a record.
[[nodiscard]] fixed_records open_raw(const std::vector<std::string>& paths, const raw_layout& layout);

namespace detail {

/// Opens raw files as a source named `name`, with features named `features`.
[[nodiscard]] fixed_records open_raw(std::string name, const std::string& features,
                                     const std::vector<std::string>& paths, const raw_layout& layout);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
