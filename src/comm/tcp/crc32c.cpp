#include "crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>

namespace muster::inline v0::detail {
namespace {

constexpr std::uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41, bits reversed

// Row k: what a byte does that k more bytes follow.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> made{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? polynomial : 0);
    made[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte)
      made[k][byte] = made[k - 1][byte] >> 8 ^ made[0][made[k - 1][byte] & 0xff];
  }
  return made;
}();

std::uint32_t by_table(const std::byte* at, std::size_t bytes, std::uint32_t crc) noexcept {
  static_assert(std::endian::native == std::endian::little);
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][word >> 8 * k & 0xff];
  }
  for (; bytes > 0; ++at, --bytes) crc = crc >> 8 ^ tables[0][(crc ^ static_cast<std::uint32_t>(*at)) & 0xff];
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(const std::byte* at, std::size_t bytes,
                                                               std::uint32_t before) noexcept {
  std::uint64_t crc = before;
  for (; bytes >= 8; at += 8, bytes -= 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, 8);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; bytes > 0; ++at, --bytes) rest = __builtin_ia32_crc32qi(rest, static_cast<unsigned char>(*at));
  return rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
  return ~by_table(bytes.data(), bytes.size(), ~before);
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) noexcept {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~by_instruction(bytes.data(), bytes.size(), ~before);
#endif
  return crc32c_by_table(bytes, before);
}

}  // namespace muster::inline v0::detail
