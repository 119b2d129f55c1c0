#pragma once

#include <muster/data/sources/tfrecord_examples.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include <muster/core/inline.hpp>
#include <muster/core/wire.hpp>
#include <muster/data/label.hpp>

// The messages. The first two have the same form, except for the lists of steps
// (https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/example.proto and feature.proto):
//
//     Example         { Features features = 1; }
//     SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
//     Features        { map<string, Feature> feature = 1; }
//     FeatureLists    { map<string, FeatureList> feature_list = 1; }
//     FeatureList     { repeated Feature feature = 1; }
//     Feature         { oneof { BytesList = 1; FloatList = 2; Int64List = 3; } }   each { repeated value = 1; }
//
// A map is a repeated message { key = 1; value = 2; }.

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
enum class list_kind : std::uint64_t { none = 0, bytes = 1, floats = 2, whole_numbers = 3 };

/// A reader of the fields of a message in the encoding of protocol buffers
/// (https://protobuf.dev/programming-guides/encoding). Has no more fields after an error, like wire_reader.
class message_reader {
 public:
  explicit message_reader(std::span<const std::byte> message) noexcept : reader_(message) {}

  /// Reads the next field. Returns false at the end and after an error.
  bool next() noexcept {
    if (!more()) return false;
    bytes = {};
    const std::uint64_t tag = varint();
    number = tag >> 3;
    form = tag & 7U;
    if (form == 0)
      value = varint();
    else if (form == 1)
      bytes = reader_.bytes(8);
    else if (form == 2)
      bytes = reader_.bytes(varint());
    else if (form == 5)
      bytes = reader_.bytes(4);
    else
      reader_.fail();
    return !failed();
  }
  [[nodiscard]] std::uint64_t varint() noexcept {
    std::uint64_t result = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint64_t byte = reader_.number<std::uint8_t>();
      result |= (byte & 127U) << shift;
      if (byte < 128) return result;
    }
    reader_.fail();
    return 0;
  }
  [[nodiscard]] bool more() const noexcept { return !reader_.rest().empty(); }
  [[nodiscard]] bool failed() const noexcept { return !reader_.good(); }

  std::uint64_t number = 0;  // number of the field
  std::uint64_t form = 0;    // wire type; 0: `value` is set; 2: `bytes` is set; 1 and 5: `bytes` has 8 and 4 bytes
  std::uint64_t value = 0;   // value of a varint
  std::span<const std::byte> bytes;  // bytes of a field with another wire type

 private:
  muster::detail::wire_reader reader_;
};

template <class T>
bool store_whole(std::byte* output, std::int64_t value) noexcept {
  if (!std::in_range<T>(value)) return false;
  const T narrow = static_cast<T>(value);
  std::memcpy(output, &narrow, sizeof narrow);
  return true;
}

// Returns the function that stores a whole number as `type`, or null if `type` is not a type of whole numbers.
inline auto writer_of(dtype type) noexcept {
  bool (*writer)(std::byte*, std::int64_t) noexcept = nullptr;
  muster::detail::with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t,
                              std::int64_t, std::uint64_t>(type,
                                                           [&](auto kind) { writer = store_whole<decltype(kind)>; });
  return writer;
}

/// The destination of a feature's values, and their number.
struct example_column {
  std::string_view name;
  dtype type = dtype::float32;
  bool is_exact_label = false;
  std::byte* output = nullptr;
  std::uint64_t capacity = 1;
  std::uint64_t count = 0;
  std::string problem = {};
  std::span<const std::byte> bytes_value = {};  // value of a feature whose type is none
  float label = 0;                              // value of a label, which finish() stores

  void add(list_kind kind, message_reader values) {
    const auto store = writer_of(type);
    if (kind == list_kind::floats && type != dtype::float32) return set_problem("has floats");
    if (kind == list_kind::whole_numbers && store == nullptr && !is_exact_label)
      return set_problem("has whole numbers");
    if (kind == list_kind::bytes && is_exact_label) return set_problem("has bytes");
    while (values.next()) {
      if (values.number != 1) continue;
      if (kind == list_kind::bytes) {
        add_bytes(values.bytes);
      } else if (kind == list_kind::floats) {
        add_elements(values.bytes);
      } else if (values.form == 0) {  // a number that is not packed
        add_number(values.value, store);
      } else {
        message_reader packed(values.bytes);
        while (packed.more()) add_number(packed.varint(), store);
        if (packed.failed()) set_problem("is truncated");
      }
    }
    if (values.failed()) set_problem("is truncated");
  }
  /// Completes the feature at the end of the message: fills missing values. Returns the problem, or an empty text.
  std::string finish(bool up_to, std::uint64_t step) {
    if (problem.empty() && count > capacity) set_problem("has more than " + std::to_string(capacity) + " values");
    if (problem.empty() && (up_to ? count % step != 0 : count != capacity))
      set_problem("has " + std::to_string(count) + " values, not " + std::to_string(capacity));
    const bool is_signed = type == dtype::int8 || type == dtype::int16 || type == dtype::int32 || type == dtype::int64;
    if (problem.empty() && is_exact_label) {
      if (!std::isfinite(label)) set_problem("has a value that is not finite (a label is finite)");
      label = label_of(label);
      if (output != nullptr) std::memcpy(output, &label, sizeof label);
    } else if (problem.empty() && output != nullptr && type != dtype::none)
      std::memset(output + count * size_of(type), is_signed ? 0xff : 0, (capacity - count) * size_of(type));
    return problem;
  }

 private:
  void set_problem(const std::string& text) { problem = text; }
  void add_bytes(std::span<const std::byte> bytes) {
    if (type != dtype::none) return add_elements(bytes);
    bytes_value = bytes;
    ++count;
  }
  void add_elements(std::span<const std::byte> bytes) {
    const std::uint64_t size = size_of(type);
    const std::uint64_t added = bytes.size() / size;
    if (bytes.size() % size != 0) set_problem("has a number of bytes that is not a multiple of the element size");
    if (is_exact_label && count == 0 && added == 1) std::memcpy(&label, bytes.data(), size);
    if (output != nullptr && !is_exact_label && count + added <= capacity)
      std::ranges::copy(bytes.first(added * size), output + count * size);
    count += added;
  }
  void add_number(std::uint64_t value, bool (*store)(std::byte*, std::int64_t) noexcept) {
    const auto number = static_cast<std::int64_t>(value);
    std::byte unread[8];
    if (is_exact_label) {
      label = label_of(number);
      if (std::isnan(label))
        set_problem("has the value " + std::to_string(number) + ", which a label cannot represent (it is a float32)");
    } else if (count < capacity && !store(output != nullptr ? output + count * size_of(type) : unread, number)) {
      set_problem("has the value " + std::to_string(number));
    }
    ++count;
  }
};

/// Reads the entries of a map and calls `entry(name, value)` for each entry. Returns false on an error.
template <class Entry>
bool read_map(std::span<const std::byte> map, const Entry& entry) {
  message_reader entries(map);
  while (entries.next()) {
    if (entries.number != 1) continue;
    message_reader pair(entries.bytes);
    std::string_view name;
    std::span<const std::byte> value;
    while (pair.next()) {
      if (pair.number == 1) name = {reinterpret_cast<const char*>(pair.bytes.data()), pair.bytes.size()};
      if (pair.number == 2) value = pair.bytes;
    }
    if (pair.failed() || !entry(name, value)) return false;
  }
  return !entries.failed();
}

inline bool read_feature(std::span<const std::byte> feature, example_column& column) {
  message_reader kinds(feature);
  while (kinds.next()) {
    if (kinds.number >= 1 && kinds.number <= 3)
      column.add(static_cast<list_kind>(kinds.number), message_reader(kinds.bytes));
  }
  return !kinds.failed();
}

inline bool read_steps(std::span<const std::byte> list, example_column& column) {
  message_reader steps(list);
  while (steps.next()) {
    if (steps.number == 1 && !read_feature(steps.bytes, column)) return false;
  }
  return !steps.failed();
}

inline std::vector<example_column> columns_for(const example_columns& requested, const example_row& row) {
  std::vector<example_column> columns;
  std::byte* output = row.bytes.data();
  for (const example_feature& feature : requested.features) {
    example_column column{.name = feature.name, .type = feature.type, .output = output};
    for (const std::uint64_t extent : feature.shape) column.capacity *= extent;
    if (output != nullptr && feature.type != dtype::none) output += column.capacity * size_of(feature.type);
    columns.push_back(std::move(column));
  }
  for (std::size_t k = 0; k < requested.labels.size(); ++k) {
    auto* const label = row.labels.empty() ? nullptr : reinterpret_cast<std::byte*>(&row.labels[k]);
    columns.push_back({.name = requested.labels[k], .is_exact_label = true, .output = label});
  }
  return columns;
}

MUSTER_INLINE std::string read_example(std::span<const std::byte> message, const example_columns& requested,
                                       example_row& row) {
  auto columns = columns_for(requested, row);
  message_reader parts(message);
  bool good = true;
  while (good && parts.next()) {
    if (parts.number != 1 && parts.number != 2) continue;
    good = read_map(parts.bytes, [&](std::string_view name, std::span<const std::byte> value) {
      bool good_feature = true;
      for (example_column& column : columns) {
        if (column.name != name) continue;
        column.count = 0;  // the last feature of a name counts
        column.problem.clear();
        good_feature = good_feature && (parts.number == 1 ? read_feature(value, column) : read_steps(value, column));
      }
      return good_feature;
    });
  }
  if (!good || parts.failed()) {
    return "the message is not a tf.train.Example or SequenceExample (it is truncated or has another form); check the "
           "program that wrote it";
  }
  for (std::size_t k = 0; k < columns.size(); ++k) {
    const bool up_to = k < requested.features.size() && requested.features[k].up_to;
    const std::uint64_t extent = up_to ? requested.features[k].shape.front() : 1;
    const std::string problem = columns[k].finish(up_to, columns[k].capacity / extent);
    if (problem.empty()) continue;
    const std::string type = columns[k].type == dtype::none ? "bytes" : std::string(to_string(columns[k].type));
    return "feature '" + std::string(columns[k].name) + "' of the message " + problem + " (" + type + " x " +
           std::to_string(columns[k].capacity) + " is requested); check the name, type and shape";
  }
  if (!columns.empty()) row.bytes_value = columns.front().bytes_value;
  return {};
}

}}}}  // namespace muster::v0::data::detail

#include <muster/core/detail/exact_end.hpp>
