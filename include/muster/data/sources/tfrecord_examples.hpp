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

namespace muster { inline namespace v0 {

/// A feature of every message, which becomes a field of every record.
///
/// Its values may be a FloatList (for float32), an Int64List (for any type of whole numbers, which each value must fit)
/// or a BytesList (for any type: the elements as they lie in memory, little-endian, all values of the list one behind
/// another). Of a feature list of a SequenceExample, the values of its steps follow each other: {steps, values of
/// each}.
struct example_feature {
  std::string name;                       ///< "image/encoded"
  dtype type = dtype::float32;            ///< of its elements; none: one value of bytes, which is all of the record
  std::vector<std::uint64_t> shape = {};  ///< row-major; empty for one number
  /// The first extent is the most that there may be, and a message may have less or none: the rest is -1 for signed
  /// whole numbers and 0 for others.
  bool up_to = false;
};

/// What becomes of a message: its fields, and its labels (features of one number each).
struct example_columns {
  std::vector<example_feature> features;
  std::vector<std::string> labels = {};
};

/// Features as text: "mean_rgb:float32[1024],labels:int64[..20],rgb:uint8[..300x1024]" or "image/encoded:bytes".
/// Throws configuration_error for a text that is none.
[[nodiscard]] std::vector<example_feature> parse_example_features(const std::string& text);

/// The messages in TFRecord files; a record_source. Records are of fixed form with a field for each feature, or of
/// bytes where the only feature has type none. A message that lacks a feature, has another number of values or another
/// type, or is damaged, is a bad record. The digest is that of the files and of the columns.
class tfrecord_examples : public detail::source_with_facts {
 public:
  /// Throws configuration_error for columns that cannot be records: none at all, two of one name, or bytes beside
  /// others.
  tfrecord_examples(tfrecord_files files, example_columns columns);

  /// As record_source has them; of records of bytes the sizes are looked up in the messages.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(record_source<tfrecord_examples>);

namespace detail {

/// A message as a record: `bytes` are the fields one after another (none are asked for if it is empty), `whole` is the
/// value of a feature of type none and lies in the message.
struct example_row {
  std::span<std::byte> bytes;
  std::span<float> labels;
  std::span<const std::byte> whole = {};
};
/// Reads a message, and returns what is wrong with it: problem (why) suggestion, or nothing.
[[nodiscard]] std::string read_example(std::span<const std::byte> message, const example_columns& columns,
                                       example_row& to);

}  // namespace detail

}}  // namespace muster::v0
