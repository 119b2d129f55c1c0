// The structure of the records of a source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The format of records in memory. The numbers are part of file formats and must not change.
enum class record_form : std::uint8_t {
  fixed = 0,  ///< every record has the same size: its fields, one after another without a gap
  bytes = 1,  ///< any number of bytes, in a format that only the user's code reads
  sparse = 2  ///< any number of sparse_entry values
};

/// A feature of a sparse record in memory. Indices count from 0 and ascend within a record.
struct sparse_entry {
  std::uint32_t index;
  float value;
};
static_assert(sizeof(sparse_entry) == 8);

/// An array that every record contains.
struct record_field {
  std::string name{};                  ///< for example "image"
  dtype type = dtype::float32;         ///< type of the elements
  std::vector<std::uint64_t> shape{};  ///< row-major, for example {3, 32, 32}; empty for a single number

  /// Returns the product of the extents.
  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t all = 1;
    for (const std::uint64_t extent : shape) all *= extent;
    return all;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return elements() * size_of(type); }

  friend bool operator==(const record_field&, const record_field&) = default;
};

/// The contents of every record of a source. Labels are not part of the record's bytes. They are floats beside the
/// record, as in a dataset, so that a batch has its labels in one array for every form of record.
struct record_schema {
  record_form form = record_form::fixed;
  std::vector<record_field> fields{};  ///< fields of a fixed record; empty for other forms
  std::uint64_t features = 0;          ///< number of features of a sparse record: indices are below this number
  std::vector<std::string> labels{};   ///< names of a record's labels: {"label"}, {"coarse", "fine"} or none
  std::vector<std::string> classes{};  ///< class names for the first label, from class 0 on; empty if unknown

  /// Returns the size in bytes of every record if records are fixed, else 0.
  [[nodiscard]] std::uint64_t record_bytes() const noexcept {
    std::uint64_t all = 0;
    for (const record_field& field : fields) all += field.bytes();
    return all;
  }

  friend bool operator==(const record_schema&, const record_schema&) = default;
};

/// Returns a description for people: "image uint8[3x32x32], label coarse", or "bytes, label label of 2 classes (cat,
/// dog)".
[[nodiscard]] std::string to_string(const record_schema& schema);

namespace detail {

/// The names of a table's columns: the names in its header, or else their numbers from 0.
struct table_names {
  std::vector<std::string> features = {};  ///< in the order of the values in a record
  std::string label = {};
  std::vector<std::string> classes = {};  ///< of the label, if the table has their names; see record_schema::classes
  bool has_header = false;                ///< true if the first row of a text has the names
};

/// Returns the type to which to_string() gives this name, or dtype::none if there is no such type.
[[nodiscard]] dtype dtype_named(std::string_view name) noexcept;

/// Returns first * the product of `extents`, values from a file that is not trusted. Returns nothing if the product
/// does not fit into 64 bits.
[[nodiscard]] std::optional<std::uint64_t> checked_product(std::uint64_t first, std::span<const std::uint64_t> extents);

}  // namespace detail

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::record_field;
using data::record_form;
using data::record_schema;
using data::sparse_entry;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
