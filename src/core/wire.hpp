// Numbers, texts and bytes one after the other, as files, stores and other ranks get them: one writer and one reader.
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

/// What is written as its bytes: a number, or a structure of numbers without gaps.
template <class T>
concept wire_value = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>;

/// The bytes of a number, little-endian whatever the machine; those of a structure are as the machine has them.
template <wire_value T>
void turn_to_wire(std::byte* bytes) noexcept {
  if constexpr (std::endian::native != std::endian::little && (std::is_arithmetic_v<T> || std::is_enum_v<T>))
    std::reverse(bytes, bytes + sizeof(T));
}

/// Puts each thing behind what is there.
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
  /// Numbers or structures as they lie in memory, with their count before them, 64 bits.
  template <wire_value T>
  void add_all(std::span<const T> values) {
    add(std::uint64_t{values.size()});
    add_bytes(std::as_bytes(values));
  }
  /// With its length before it, 64 bits.
  void add_text(std::string_view text) {
    add(std::uint64_t{text.size()});
    text_.append(text);
  }
  [[nodiscard]] std::string take() noexcept { return std::move(text_); }
  /// A copy.
  [[nodiscard]] std::vector<std::byte> bytes() const {
    const auto all = std::as_bytes(std::span(text_));
    return {all.begin(), all.end()};
  }

 private:
  std::string text_;
};

/// Reads what others wrote: until something is missing, and then nothing but zeros, so that the caller looks once, at
/// the end, and throws the error that says what is wrong. Texts and bytes are those that were given.
class wire_reader {
 public:
  explicit wire_reader(std::span<const std::byte> bytes) noexcept : rest_(bytes) {}
  explicit wire_reader(std::string_view text) noexcept : rest_(std::as_bytes(std::span(text))) {}

  template <wire_value T = std::uint64_t>
  [[nodiscard]] T number() noexcept {
    T value{};
    std::byte read[sizeof(T)];
    const auto from = bytes(sizeof(T));
    if (from.empty()) return value;
    std::memcpy(read, from.data(), sizeof(T));
    turn_to_wire<T>(read);
    std::memcpy(&value, read, sizeof(T));
    return value;
  }
  /// Numbers one after the other.
  template <wire_value... T>
  void read(T&... into) noexcept {
    ((into = number<T>()), ...);
  }
  /// As many numbers as there is room for, as they lie in memory.
  template <wire_value T>
  void read_all(std::span<T> into) noexcept {
    const auto from = bytes(into.size_bytes());
    if (!from.empty()) std::memcpy(into.data(), from.data(), from.size());
  }
  /// So many bytes, or none.
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
  /// With its length before it.
  [[nodiscard]] std::string_view text() noexcept { return chars(number()); }
  /// A count of things of which each takes so many bytes at least; 0 when they cannot all be there, or are too many.
  [[nodiscard]] std::size_t count(std::size_t least_bytes,
                                  std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) noexcept {
    const auto n = number();
    if (n <= most && n <= rest_.size() / least_bytes) return static_cast<std::size_t>(n);
    fail();
    return 0;
  }

  /// What add_all wrote; none when they cannot all be there, or are more than `most`.
  template <wire_value T>
  [[nodiscard]] std::vector<T> all(std::uint64_t most = std::numeric_limits<std::uint64_t>::max()) {
    std::vector<T> read(count(sizeof(T), most));
    read_all(std::span(read));
    return read;
  }

  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return rest_; }
  /// Whether all was there, and nothing is left.
  [[nodiscard]] bool whole() const noexcept { return good_ && rest_.empty(); }
  [[nodiscard]] bool good() const noexcept { return good_; }
  /// What was read cannot be: the same as if something were missing.
  void fail() noexcept {
    good_ = false;
    rest_ = {};
  }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

}}}  // namespace muster::v0::detail
