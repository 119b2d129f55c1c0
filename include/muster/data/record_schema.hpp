// What the records of a source are made of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 {

/// How records lie in memory; the numbers are part of files and stay.
enum class record_form : std::uint8_t {
  fixed = 0,  ///< every record has the same bytes: its fields, one after another without a gap
  bytes = 1,  ///< any number of bytes, which only the user can read
  sparse = 2  ///< any number of sparse_entry
};

/// One feature of a sparse record, as it lies in memory. Indices count from 0 and ascend within a record.
struct sparse_entry {
  std::uint32_t index;
  float value;
};
static_assert(sizeof(sparse_entry) == 8);

/// One array of every record.
struct record_field {
  std::string name{};                  ///< "image"
  dtype type = dtype::float32;         ///< of its elements
  std::vector<std::uint64_t> shape{};  ///< row-major, {3, 32, 32}; empty for one number

  /// The product of the shape.
  [[nodiscard]] std::uint64_t elements() const noexcept {
    std::uint64_t all = 1;
    for (const std::uint64_t extent : shape) all *= extent;
    return all;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return elements() * size_of(type); }

  friend bool operator==(const record_field&, const record_field&) = default;
};

/// What every record of a source has. Labels are no part of the record's bytes: they are floats beside it, as in a
/// dataset, so that a batch has them in one array whatever the records are.
struct record_schema {
  record_form form = record_form::fixed;
  std::vector<record_field> fields{};  ///< of a fixed record; none for others
  std::uint64_t features = 0;          ///< of a sparse record: indices are below this
  std::vector<std::string> labels{};   ///< the name of each label of a record: {"label"}, {"coarse", "fine"} or none
  std::vector<std::string> classes{};  ///< names of the classes of the first label, from class 0 on; empty: not known

  /// Bytes of every record if they are fixed, else 0.
  [[nodiscard]] std::uint64_t record_bytes() const noexcept {
    std::uint64_t all = 0;
    for (const record_field& field : fields) all += field.bytes();
    return all;
  }

  friend bool operator==(const record_schema&, const record_schema&) = default;
};

/// "image uint8[3x32x32], label coarse", or "bytes, label label of 2 classes (cat, dog)", for people.
[[nodiscard]] std::string to_string(const record_schema& schema);

namespace detail {

/// Names of a table's columns: of its header, or else their numbers from 0.
struct table_names {
  std::vector<std::string> features = {};  ///< in the order of their values in a record
  std::string label = {};
};

/// What to_string() calls so; dtype::none for nothing.
[[nodiscard]] dtype dtype_named(std::string_view name) noexcept;

/// first * the product of `extents`, which a file claims, or nothing when that does not fit into 64 bits.
[[nodiscard]] std::optional<std::uint64_t> checked_product(std::uint64_t first, std::span<const std::uint64_t> extents);

}  // namespace detail

}}  // namespace muster::v0
