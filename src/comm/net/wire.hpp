// Numbers and texts as bytes: little-endian, whatever the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::inline v0::detail {

/// Puts it behind what is there.
template <class T>
void put(std::string& bytes, T number) {
  for (std::size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
}

/// With its length before it, 64 bits.
inline void put_text(std::string& bytes, std::string_view text) {
  put(bytes, std::uint64_t{text.size()});
  bytes += text;
}

/// Takes it off the front; there are enough bytes.
template <class T>
[[nodiscard]] T take(std::string_view& bytes) noexcept {
  T number = 0;
  for (std::size_t i = 0; i < sizeof number; ++i) {
    number = static_cast<T>(number | static_cast<T>(static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i)));
  }
  bytes.remove_prefix(sizeof number);
  return number;
}

/// Reads what others wrote: until something is missing, and then nothing but zeros. The texts are those of the bytes.
class wire_reader {
 public:
  explicit wire_reader(std::string_view bytes) noexcept : rest_(bytes) {}

  template <class T = std::uint64_t>
  [[nodiscard]] T number() noexcept {
    if (rest_.size() >= sizeof(T)) return take<T>(rest_);
    fail();
    return 0;
  }
  [[nodiscard]] std::string_view text() noexcept { return bytes(number()); }
  [[nodiscard]] std::string_view bytes(std::uint64_t length) noexcept {
    if (length > rest_.size()) {
      fail();
      return {};
    }
    const auto read = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return read;
  }
  /// Whether all was there, and nothing is left.
  [[nodiscard]] bool whole() const noexcept { return good_ && rest_.empty(); }
  [[nodiscard]] bool good() const noexcept { return good_; }

 private:
  void fail() noexcept {
    good_ = false;
    rest_ = {};
  }

  std::string_view rest_;
  bool good_ = true;
};

}  // namespace muster::inline v0::detail
