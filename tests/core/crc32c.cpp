#include <muster/core/crc32c.hpp>

#include <string_view>
#include <vector>

#include <muster/core/crc_tables.hpp>
#include <muster/core/random.hpp>
#include "catch.hpp"

namespace {

// Computes the definition, bit by bit.
std::uint32_t naive(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  std::uint32_t crc = ~before;
  for (const std::byte byte : bytes) {
    crc ^= static_cast<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

}  // namespace

TEST_CASE("CRC32C gives the values of RFC 3720") {
  std::vector<std::byte> bytes(32);
  CHECK(muster::crc32c(bytes) == 0x8a9136aa);
  bytes.assign(32, std::byte{0xff});
  CHECK(muster::crc32c(bytes) == 0x62a8ab43);
  for (std::size_t i = 0; i < 32; ++i) bytes[i] = static_cast<std::byte>(i);
  CHECK(muster::crc32c(bytes) == 0x46dd794e);
  CHECK(muster::crc32c(std::as_bytes(std::span(std::string_view("123456789")))) == 0xe3069283);
  CHECK(muster::crc32c({}) == 0);
}

TEST_CASE("the tables have the CRC-32 of ZIP, whole and in parts") {
  const auto bytes = std::as_bytes(std::span(std::string_view("123456789")));
  const auto crc = [](auto part, std::uint32_t before) {
    return muster::detail::crc_by_tables<muster::detail::crc32_polynomial>(part, before);
  };
  CHECK(crc(bytes, 0) == 0xcbf43926);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut)
    CHECK(crc(bytes.subspan(cut), crc(bytes.first(cut), 0)) == 0xcbf43926);
}

TEST_CASE("CRC32C is the same by instruction, by tables and bit by bit, and goes on from any cut") {
  const std::uint64_t seed = 32;
  CAPTURE(seed);
  muster::random_stream random(seed);
  std::vector<std::byte> bytes(20000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  for (int i = 0; i < 300; ++i) {
    const std::size_t size = i < 50 ? static_cast<std::size_t>(i) : random.below(i % 10 == 0 ? 17000 : 1600);
    const auto part = std::span(bytes).subspan(random.below(bytes.size() - size), size);
    const std::uint32_t expected = naive(part);
    CAPTURE(size);
    REQUIRE(muster::crc32c(part) == expected);
    REQUIRE(muster::detail::crc32c_by_tables(part) == expected);
    const std::size_t cut = random.below(size + 1);
    REQUIRE(muster::crc32c(part.subspan(cut), muster::crc32c(part.first(cut))) == expected);
    REQUIRE(muster::detail::crc32c_by_tables(part.subspan(cut), naive(part.first(cut))) == expected);
  }
}
