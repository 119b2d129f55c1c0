// Numbers in and out of bytes, bounded: what is read is believed by nobody before it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace muster::inline v0::ps::detail {

/// Appends plain numbers, in the byte order of the machine.
class byte_writer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  void add_bytes(std::span<const std::byte> bytes) {
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Reads until something is missing, and then nothing but zeros.
class byte_reader {
 public:
  explicit byte_reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  explicit byte_reader(std::string_view text) : rest_(std::as_bytes(std::span(text))) {}

  template <class T>
  requires std::is_trivially_copyable_v<T>
  [[nodiscard]] T number() {
    T value{};
    if (rest_.size() < sizeof value) {
      good_ = false;
      rest_ = {};
      return value;
    }
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_ = rest_.subspan(sizeof value);
    return value;
  }
  /// A count of things of which each takes so many bytes at least; 0 when they cannot all be there.
  [[nodiscard]] std::size_t count(std::size_t least_bytes, std::size_t most) {
    const auto n = number<std::uint64_t>();
    if (n <= most && n <= rest_.size() / least_bytes) return static_cast<std::size_t>(n);
    good_ = false;
    rest_ = {};
    return 0;
  }
  [[nodiscard]] std::span<const std::byte> bytes(std::size_t n) {
    if (n > rest_.size()) {
      good_ = false;
      rest_ = {};
      return {};
    }
    const auto read = rest_.first(n);
    rest_ = rest_.subspan(n);
    return read;
  }
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return rest_; }
  [[nodiscard]] bool good() const noexcept { return good_; }
  [[nodiscard]] bool whole() const noexcept { return good_ && rest_.empty(); }
  void fail() noexcept { good_ = false; }

 private:
  std::span<const std::byte> rest_;
  bool good_ = true;
};

}  // namespace muster::inline v0::ps::detail
