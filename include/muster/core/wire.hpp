// A writer and a reader for sequences of numbers, texts and bytes in files, stores and messages.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace muster { inline namespace v0 { namespace detail {

/// A type that is written as its bytes: a number, or a structure of numbers without gaps.
template <class T>
concept wire_value = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

/// Converts the bytes of a number between the machine's order and little-endian. The bytes of a structure keep the
/// machine's order.
template <wire_value T>
void turn_to_wire(std::byte* bytes) noexcept {
  if constexpr (std::endian::native != std::endian::little && (std::is_arithmetic_v<T> || std::is_enum_v<T>))
    std::reverse(bytes, bytes + sizeof(T));
}

/// A writer that appends each value to a buffer.
class wire_writer {
 public:
  wire_writer() = default;
  explicit wire_writer(std::string begin) noexcept : text_(std::move(begin)) {}

  template <wire_value T, wire_value... More>
  void add(const T& value, const More&... more) {
    std::byte bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof value);
    turn_to_wire<T>(bytes);
    add_bytes(bytes);
    (add(more), ...);
  }
  void add_bytes(std::span<const std::byte> bytes) {
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  /// Appends numbers or structures as their bytes in memory, after their count as 64 bits.
  template <wire_value T>
  void add_all(std::span<const T> values) {
    add(std::uint64_t{values.size()});
    add_bytes(std::as_bytes(values));
  }
  /// Appends a text after its length as 64 bits.
  void add_text(std::string_view text) {
    add(std::uint64_t{text.size()});
    text_.append(text);
  }
  [[nodiscard]] std::string take() noexcept { return std::move(text_); }
  /// Returns a copy of the buffer.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    const auto all = std::as_bytes(std::span(text_));
    return {all.begin(), all.end()};
  }

 private:
  std::string text_;
};

/// A reader of bytes from files or other processes. When data is missing, the reader returns zeros from then on. The
/// caller therefore checks once, at the end, and throws the appropriate error. Texts and bytes are views of the input.
class wire_reader {
 public:
  explicit wire_reader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}
  explicit wire_reader(std::string_view text) noexcept : rest_(std::as_bytes(std::span(text))) {}

  template <wire_value T = std::uint64_t>
  [[nodiscard]] T number() noexcept {
    T value{};
    std::byte read[sizeof(T)];
    const auto source = bytes(sizeof(T));
    if (source.empty()) return value;
    std::memcpy(read, source.data(), sizeof(T));
    turn_to_wire<T>(read);
    std::memcpy(&value, read, sizeof(T));
    return value;
  }
  /// Reads several numbers.
  template <wire_value... T>
  void read(T&... destination) noexcept {
    ((destination = number<T>()), ...);
  }
  /// Reads as many values as `destination` has, from their bytes in memory.
  template <wire_value T>
  void read_all(std::span<T> destination) noexcept {
    const auto source = bytes(destination.size_bytes());
    if (!source.empty()) std::memcpy(destination.data(), source.data(), source.size());
  }
  /// Returns the next n bytes, or nothing if fewer are left.
  [[nodiscard]] std::span<const std::byte> bytes(std::uint64_t n) noexcept {
    if (n > rest_.size()) {
      fail();
      return {};
    }
    const auto read = rest_.first(static_cast<std::size_t>(n));
    rest_ = rest_.subspan(read.size());
    return read;
  }
  [[nodiscard]] std::string_view chars(std::uint64_t n) noexcept {
    const auto read = bytes(n);
    return {reinterpret_cast<const char*>(read.data()), read.size()};
  }
  /// Returns a text that follows its length.
  [[nodiscard]] std::string_view text() noexcept { return chars(number()); }
  /// Returns a count of elements with at least `least_bytes` bytes each. Returns 0 and fails if the rest is too short
  /// for them, or if the count exceeds `most`.
  [[nodiscard]] std::size_t count(std::size_t least_bytes,
                                  std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) noexcept {
    const auto n = number();
    if (n <= most && n <= rest_.size() / least_bytes) return static_cast<std::size_t>(n);
    fail();
    return 0;
  }

  /// Returns the values that add_all wrote. Returns nothing and fails if the rest is too short for them, or if they are
  /// more than `most`.
  template <wire_value T>
  [[nodiscard]] std::vector<T> all(std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    std::vector<T> read(count(sizeof(T), most));
    read_all(std::span(read));
    return read;
  }

  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return rest_; }
  /// Returns true if no data was missing, and no data is left.
  [[nodiscard]] bool is_complete() const noexcept { return good_ && rest_.empty(); }
  [[nodiscard]] bool good() const noexcept { return good_; }
  /// Marks the input as invalid, as if data were missing.
  void fail() noexcept {
    good_ = false;
    rest_ = {};
  }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

}}}  // namespace muster::v0::detail
