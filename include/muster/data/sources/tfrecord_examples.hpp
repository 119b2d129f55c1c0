// Columns of tf.train.Example and tf.train.SequenceExample messages in TFRecord files, by name and type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/core/dtype.hpp>
#include <muster/data/record_source.hpp>
#include <muster/data/sources/tfrecord.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A feature of every message, which becomes a field of every record.
///
/// Its values may be a FloatList (for float32), an Int64List (for any integer type, whose range must include each
/// value) or a BytesList (for any type: the elements in memory format, little-endian, all values of the list one after
/// another). For a feature list of a SequenceExample, the values of its steps are concatenated: {steps, values in a
/// step}.
struct example_feature {
  std::string name;             ///< for example "image/encoded"
  dtype type = dtype::float32;  ///< type of the elements; none: a single value of bytes, which is the whole record
  std::vector<std::uint64_t> shape = {};  ///< row-major; empty for a single number
  /// If true, the first extent is a maximum, and a message may have fewer values or none, but a multiple of the product
  /// of the other extents. The rest is filled with -1 for signed integers and 0 for other types.
  bool up_to = false;
};

/// The columns that a message is converted to: its fields, and its labels (features with a single number).
struct example_columns {
  std::vector<example_feature> features;
  std::vector<std::string> labels = {};
};

/// Parses a list of features: "mean_rgb:float32[1024],labels:int64[..20],rgb:uint8[..300x1024]" or
/// "image/encoded:bytes". Throws configuration_error for invalid text.
[[nodiscard]] std::vector<example_feature> parse_example_features(const std::string& text);

/// The messages in TFRecord files. A record_source. Records are of fixed form with a field for each feature, or of
/// bytes if the only feature has type none. A message that lacks a feature, has another number of values or another
/// type, or is damaged, is a bad record. The digest covers the files and the columns.
class tfrecord_examples : public detail::source_with_facts {
 public:
  /// Throws configuration_error for columns that cannot form a record: no fields, two columns with the same name, bytes
  /// beside other fields, or a record of more than 1 GiB.
  tfrecord_examples(tfrecord_files files, example_columns columns);

  /// The functions of record_source. For records of bytes, sizes() reads the messages.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Returns the state of the files on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(record_source<tfrecord_examples>);

namespace detail {

/// A message as a record. `bytes` receives the fields one after another (an empty span: no fields are requested).
/// `bytes_value` is the value of a feature of type none, a view into the message.
struct example_row {
  std::span<std::byte> bytes;
  std::span<float> labels;
  std::span<const std::byte> bytes_value = {};
};
/// Reads a message. Returns an error description in the form "problem (reason); suggestion", or an empty string on
/// success.
[[nodiscard]] std::string read_example(std::span<const std::byte> message, const example_columns& columns,
                                       example_row& row);

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
