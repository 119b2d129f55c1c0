#include <muster/data/sources/tfrecord_examples.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "../../core/wire.hpp"
#include "../label.hpp"

// The messages, of which the first two have the same form but for the lists of steps
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

namespace muster { inline namespace v0 { namespace detail {
namespace {

enum class list_kind : std::uint64_t { none = 0, bytes = 1, floats = 2, whole_numbers = 3 };

/// The fields of a message in the encoding of protocol buffers (https://protobuf.dev/programming-guides/encoding), as
/// wire_reader reads: once something is wrong there is nothing more.
class message_reader {
 public:
  explicit message_reader(std::span<const std::byte> message) noexcept : from_(message) {}

  /// The next field: false at the end, or where something is wrong.
  bool next() noexcept {
    if (!more()) return false;
    bytes = {};
    const std::uint64_t tag = varint();
    number = tag >> 3;
    form = tag & 7U;
    if (form == 0)
      value = varint();
    else if (form == 1)
      bytes = from_.bytes(8);
    else if (form == 2)
      bytes = from_.bytes(varint());
    else if (form == 5)
      bytes = from_.bytes(4);
    else
      from_.fail();
    return !failed();
  }
  [[nodiscard]] std::uint64_t varint() noexcept {
    std::uint64_t all = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const std::uint64_t byte = from_.number<std::uint8_t>();
      all |= (byte & 127U) << shift;
      if (byte < 128) return all;
    }
    from_.fail();
    return 0;
  }
  [[nodiscard]] bool more() const noexcept { return !from_.rest().empty(); }
  [[nodiscard]] bool failed() const noexcept { return !from_.good(); }

  std::uint64_t number = 0;          // of the field
  std::uint64_t form = 0;            // 0: value, 2: bytes, 1 and 5: as many bytes
  std::uint64_t value = 0;           // of a varint
  std::span<const std::byte> bytes;  // of the others

 private:
  wire_reader from_;
};

template <class T>
bool put_whole(std::byte* to, std::int64_t value) noexcept {
  if (!std::in_range<T>(value)) return false;
  const T narrow = static_cast<T>(value);
  std::memcpy(to, &narrow, sizeof narrow);
  return true;
}

// Null for types that are no whole numbers.
auto writer_of(dtype type) noexcept {
  bool (*writer)(std::byte*, std::int64_t) noexcept = nullptr;
  with_one_of<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t,
              std::uint64_t>(type, [&](auto kind) { writer = put_whole<decltype(kind)>; });
  return writer;
}

/// Where the values of a feature go, and how many there were.
struct example_column {
  std::string_view name;
  dtype type = dtype::float32;
  bool is_label = false;
  std::byte* to = nullptr;
  std::uint64_t most = 1;
  std::uint64_t count = 0;
  std::string problem = {};
  std::span<const std::byte> whole = {};  // of type none
  float label = 0;                        // if this is a label; finish() writes it

  void add(list_kind kind, message_reader values) {
    const auto put = writer_of(type);
    if (kind == list_kind::floats && type != dtype::float32) return refuse("has floats");
    if (kind == list_kind::whole_numbers && put == nullptr && !is_label) return refuse("has whole numbers");
    if (kind == list_kind::bytes && is_label) return refuse("has bytes");
    while (values.next()) {
      if (values.number != 1) continue;
      if (kind == list_kind::bytes) {
        add_bytes(values.bytes);
      } else if (kind == list_kind::floats) {
        add_elements(values.bytes);
      } else if (values.form == 0) {  // one that is not packed
        add_whole(values.value, put);
      } else {
        message_reader packed(values.bytes);
        while (packed.more()) add_whole(packed.varint(), put);
        if (packed.failed()) refuse("breaks off");
      }
    }
    if (values.failed()) refuse("breaks off");
  }
  /// What is wrong once the message is over, or nothing; fills what it has not.
  std::string finish(bool up_to, std::uint64_t step) {
    if (problem.empty() && count > most) refuse("has more than " + std::to_string(most) + " values");
    if (problem.empty() && (up_to ? count % step != 0 : count != most))
      refuse("has " + std::to_string(count) + " values, not " + std::to_string(most));
    const bool is_signed = type == dtype::int8 || type == dtype::int16 || type == dtype::int32 || type == dtype::int64;
    if (problem.empty() && is_label) {
      if (!std::isfinite(label)) refuse("has a value that is not finite, which no label is");
      label = label_of(label);
      if (to != nullptr) std::memcpy(to, &label, sizeof label);
    } else if (problem.empty() && to != nullptr && type != dtype::none)
      std::memset(to + count * size_of(type), is_signed ? 0xff : 0, (most - count) * size_of(type));
    return problem;
  }

 private:
  void refuse(const std::string& what) { problem = what; }
  void add_bytes(std::span<const std::byte> bytes) {
    if (type != dtype::none) return add_elements(bytes);
    whole = bytes;
    ++count;
  }
  void add_elements(std::span<const std::byte> bytes) {
    const std::uint64_t size = size_of(type);
    const std::uint64_t added = bytes.size() / size;
    if (bytes.size() % size != 0) refuse("has bytes that are no whole elements");
    if (is_label && count == 0 && added == 1) std::memcpy(&label, bytes.data(), size);
    if (to != nullptr && !is_label && count + added <= most)
      std::ranges::copy(bytes.first(added * size), to + count * size);
    count += added;
  }
  void add_whole(std::uint64_t value, bool (*put)(std::byte*, std::int64_t) noexcept) {
    const auto number = static_cast<std::int64_t>(value);
    std::byte unread[8];
    if (is_label) {
      label = label_of(number);
      if (std::isnan(label))
        refuse("has the value " + std::to_string(number) + ", which no label keeps (it is a float32)");
    } else if (count < most && !put(to != nullptr ? to + count * size_of(type) : unread, number)) {
      refuse("has the value " + std::to_string(number));
    }
    ++count;
  }
};

/// Reads the entries of a map, and calls `entry(name, value)` for each; false where something is wrong.
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

bool read_feature(std::span<const std::byte> feature, example_column& to) {
  message_reader kinds(feature);
  while (kinds.next()) {
    if (kinds.number >= 1 && kinds.number <= 3)
      to.add(static_cast<list_kind>(kinds.number), message_reader(kinds.bytes));
  }
  return !kinds.failed();
}

bool read_steps(std::span<const std::byte> list, example_column& to) {
  message_reader steps(list);
  while (steps.next()) {
    if (steps.number == 1 && !read_feature(steps.bytes, to)) return false;
  }
  return !steps.failed();
}

std::vector<example_column> columns_for(const example_columns& asked, const example_row& row) {
  std::vector<example_column> columns;
  std::byte* to = row.bytes.data();
  for (const example_feature& feature : asked.features) {
    example_column column{.name = feature.name, .type = feature.type, .to = to};
    for (const std::uint64_t extent : feature.shape) column.most *= extent;
    if (to != nullptr && feature.type != dtype::none) to += column.most * size_of(feature.type);
    columns.push_back(std::move(column));
  }
  for (std::size_t k = 0; k < asked.labels.size(); ++k) {
    auto* const label = row.labels.empty() ? nullptr : reinterpret_cast<std::byte*>(&row.labels[k]);
    columns.push_back({.name = asked.labels[k], .is_label = true, .to = label});
  }
  return columns;
}

}  // namespace

std::string read_example(std::span<const std::byte> message, const example_columns& asked, example_row& to) {
  auto columns = columns_for(asked, to);
  message_reader parts(message);
  bool whole = true;
  while (whole && parts.next()) {
    if (parts.number != 1 && parts.number != 2) continue;
    whole = read_map(parts.bytes, [&](std::string_view name, std::span<const std::byte> value) {
      bool good = true;
      for (example_column& column : columns) {
        if (column.name != name) continue;
        column.count = 0;  // of two of one name the last one counts
        column.problem.clear();
        good = good && (parts.number == 1 ? read_feature(value, column) : read_steps(value, column));
      }
      return good;
    });
  }
  if (!whole || parts.failed()) {
    return "the message is no tf.train.Example or SequenceExample (it breaks off or has another form); check what "
           "wrote it";
  }
  for (std::size_t k = 0; k < columns.size(); ++k) {
    const bool up_to = k < asked.features.size() && asked.features[k].up_to;
    const std::uint64_t extent = up_to ? asked.features[k].shape.front() : 1;
    const std::string problem = columns[k].finish(up_to, columns[k].most / extent);
    if (problem.empty()) continue;
    const std::string type = columns[k].type == dtype::none ? "bytes" : std::string(to_string(columns[k].type));
    return "feature '" + std::string(columns[k].name) + "' of the message " + problem + " (" + type + " x " +
           std::to_string(columns[k].most) + " is asked for); check the name, type and shape";
  }
  if (!columns.empty()) to.bytes_value = columns.front().whole;
  return {};
}

}}}  // namespace muster::v0::detail
