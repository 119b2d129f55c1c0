// A 64-bit digest that distinguishes data and states; not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace muster { inline namespace v0 {

/// Returns a bijection of 64-bit words in which every input bit affects every output bit (the finaliser of splitmix64,
/// Stafford's variant 13: https://doi.org/10.1145/2714064.2660195).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// A 64-bit digest of bytes and words that depends on their order. It is the same on every machine with the same byte
/// order. Two different inputs have the same digest with probability 2^-64; an attacker can construct such inputs.
class digest {
 public:
  /// Appends a word.
  digest& add(std::uint64_t word) noexcept {
    state_ = mix(state_ ^ word) + 0x9e3779b97f4a7c15ULL;
    return *this;
  }

  /// Appends the length and the bytes, so that two spans differ from their concatenation. O(size).
  digest& add(std::span<const std::byte> bytes) noexcept {
    add(std::uint64_t{bytes.size()});
    while (!bytes.empty()) {
      const std::size_t n = bytes.size() < 8 ? bytes.size() : 8;
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data(), n);
      add(word);
      bytes = bytes.subspan(n);
    }
    return *this;
  }

  /// Appends the text as bytes.
  digest& add(std::string_view text) noexcept { return add(std::as_bytes(std::span(text))); }

  /// Returns the digest of everything that was added so far. More data may be added afterwards.
  [[nodiscard]] std::uint64_t value() const noexcept { return mix(state_); }

 private:
  std::uint64_t state_ = 0;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
