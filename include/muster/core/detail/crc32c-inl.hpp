#pragma once

#include <muster/core/crc32c.hpp>
#include <muster/core/crc_tables.hpp>
#include <muster/core/inline.hpp>

#include <array>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace muster { inline namespace v0 {
namespace detail {

#if defined(__x86_64__)

// A function that returns the CRC after `Bytes` appended zero bytes, with a table for each byte of the CRC, since the
// function is a linear map of the CRC's bits.
template <std::size_t Bytes>
class append_zeros {
 public:
  append_zeros() {
    std::array<std::uint32_t, 32> of_bit{};
    for (std::size_t bit = 0; bit < 32; ++bit) {
      std::uint32_t crc = std::uint32_t{1} << bit;
      for (std::size_t n = 0; n < Bytes; ++n) crc = add_byte<crc32c_polynomial>(crc, std::byte{0});
      of_bit[bit] = crc;
    }
    for (std::size_t part = 0; part < 4; ++part) {
      for (std::size_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = 0;
        for (std::size_t bit = 0; bit < 8; ++bit) crc ^= (byte >> bit & 1) != 0 ? of_bit[8 * part + bit] : 0;
        tables_[part][byte] = crc;
      }
    }
  }
  std::uint32_t operator()(std::uint32_t crc) const noexcept {
    return tables_[0][crc & 0xff] ^ tables_[1][crc >> 8 & 0xff] ^ tables_[2][crc >> 16 & 0xff] ^ tables_[3][crc >> 24];
  }

 private:
  std::array<byte_table, 4> tables_;
};

// The instruction processes a word per cycle with a latency of three cycles. Three independent chains keep it
// busy.
template <std::size_t Stretch>
__attribute__((target("sse4.2"))) std::uint64_t three_chains(std::uint64_t crc, const std::byte*& p,
                                                             std::size_t& remaining,
                                                             const append_zeros<Stretch>& skip) {
  while (remaining >= 3 * Stretch) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < Stretch; i += 8) {
      crc = _mm_crc32_u64(crc, word_at(p + i));
      second = _mm_crc32_u64(second, word_at(p + Stretch + i));
      third = _mm_crc32_u64(third, word_at(p + 2 * Stretch + i));
    }
    crc = skip(skip(static_cast<std::uint32_t>(crc)) ^ static_cast<std::uint32_t>(second)) ^ third;
    p += 3 * Stretch;
    remaining -= 3 * Stretch;
  }
  return crc;
}

inline __attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes,
                                                                      std::uint32_t before) noexcept {
  static const append_zeros<2048> long_stretch;
  static const append_zeros<256> short_stretch;
  const std::byte* p = bytes.data();
  std::size_t remaining = bytes.size();
  std::uint64_t crc = ~before;
  crc = three_chains(crc, p, remaining, long_stretch);
  crc = three_chains(crc, p, remaining, short_stretch);
  for (; remaining >= 8; remaining -= 8, p += 8) crc = _mm_crc32_u64(crc, word_at(p));
  for (; remaining != 0; --remaining, ++p) {
    crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), static_cast<unsigned char>(*p));
  }
  return ~static_cast<std::uint32_t>(crc);
}

#endif

}  // namespace detail

MUSTER_INLINE std::uint32_t detail::crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  return detail::crc_by_tables<detail::crc32c_polynomial>(bytes, before);
}

MUSTER_INLINE std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return detail::by_instruction(bytes, before);
#endif
  return detail::crc32c_by_tables(bytes, before);
}

}}  // namespace muster::v0
