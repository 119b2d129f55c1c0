// Checksums of 32 bits by tables, for any polynomial.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace muster { inline namespace v0 { namespace detail {

using byte_table = std::array<std::uint32_t, 256>;

/// Polynomials, with the bits reversed, in the order of transmission: Castagnoli's, and that of ZIP, gzip and PNG.
inline constexpr std::uint32_t crc32c_polynomial = 0x82f63b78, crc32_polynomial = 0xedb88320;

// tables[k][b] is the CRC of byte b followed by k zero bytes (Kounavis and Berry 2005, "slicing-by-8",
// https://doi.org/10.1109/ISCC.2005.18).
constexpr std::array<byte_table, 8> make_crc_tables(std::uint32_t polynomial) {
  std::array<byte_table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}
template <std::uint32_t Polynomial>
inline constexpr std::array<byte_table, 8> crc_tables = make_crc_tables(Polynomial);

template <std::uint32_t Polynomial>
constexpr std::uint32_t add_byte(std::uint32_t crc, std::byte byte) {
  return (crc >> 8) ^ crc_tables<Polynomial>[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
}

inline std::uint64_t word_at(const std::byte* p) {
  std::uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// Returns the checksum of `bytes` appended to data whose checksum is `before`.
template <std::uint32_t Polynomial>
[[nodiscard]] std::uint32_t crc_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept {
  std::uint32_t crc = ~before;
  const std::byte* p = bytes.data();
  std::size_t remaining = bytes.size();
  if constexpr (std::endian::native == std::endian::little) {
    for (; remaining >= 8; remaining -= 8, p += 8) {
      const std::uint64_t word = word_at(p) ^ crc;
      crc = 0;
      for (std::size_t k = 0; k < 8; ++k) crc ^= crc_tables<Polynomial>[7 - k][word >> (8 * k) & 0xff];
    }
  }
  for (; remaining != 0; --remaining, ++p) crc = add_byte<Polynomial>(crc, *p);
  return ~crc;
}

}}}  // namespace muster::v0::detail
