// Writes the messages of TensorFlow: tf.train.Example and SequenceExample, and the frames of a TFRecord file.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/crc32c.hpp>

namespace messages {

inline std::string little_endian(std::uint64_t value, std::size_t size) {
  std::string text;
  for (std::size_t k = 0; k < size; ++k) text += static_cast<char>(value >> (8 * k) & 0xff);
  return text;
}

/// Returns a record of a TFRecord file, according to the format's documentation.
inline std::string frame(const std::string& payload) {
  const auto masked = [&](const std::string& text) {
    const std::uint32_t crc = muster::crc32c(std::as_bytes(std::span(text)));
    return little_endian(((crc >> 15) | (crc << 17)) + 0xa282ead8U, 4);
  };
  const std::string length = little_endian(payload.size(), 8);
  return length + masked(length) + payload + masked(payload);
}

inline std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 128; value >>= 7) text += static_cast<char>(value | 128);
  return text + static_cast<char>(value);
}

/// Returns field `number` with a message or with bytes.
inline std::string field(int number, std::string_view value) {
  return varint(static_cast<std::uint64_t>(number) << 3 | 2) + varint(value.size()) + std::string(value);
}

inline std::string floats(const std::vector<float>& values, bool packed = true) {
  std::string list;
  for (const float value : values) {
    if (!packed) list += varint(1 << 3 | 5);
    list += little_endian(std::bit_cast<std::uint32_t>(value), 4);
  }
  return field(2, packed && !values.empty() ? field(1, list) : list);
}

inline std::string whole_numbers(const std::vector<std::int64_t>& values, bool packed = true) {
  std::string list;
  for (const std::int64_t value : values) {
    if (!packed) list += varint(1 << 3 | 0);
    list += varint(static_cast<std::uint64_t>(value));
  }
  return field(3, packed && !values.empty() ? field(1, list) : list);
}

inline std::string bytes(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += field(1, value);
  return field(1, list);
}

/// Returns an entry of the map of features, or of the map of feature lists.
inline std::string entry(std::string_view name, std::string_view value) {
  return field(1, field(1, name) + field(2, value));
}

/// Returns an Example, or the context of a SequenceExample, with these entries.
inline std::string example(const std::string& entries) { return field(1, entries); }
/// Returns the feature lists of a SequenceExample, which follow the context.
inline std::string feature_lists(const std::string& entries) { return field(2, entries); }
/// Returns the value of an entry of feature lists.
inline std::string steps(const std::vector<std::string>& features) {
  std::string list;
  for (const std::string& feature : features) list += field(1, feature);
  return list;
}

}  // namespace messages
