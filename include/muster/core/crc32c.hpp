// The checksum of records in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster { inline namespace v0 {

/// Returns the CRC32C (Castagnoli's polynomial; RFC 3720, B.4) of `bytes` appended to data whose CRC32C is `before`. It
/// detects every error of up to three bits, every burst of up to 32 bits, and any other error except one in 2^32. Uses
/// the processor's own instruction where it has one (x86 with SSE4.2), with three chains at a time, else tables. The
/// result is the same everywhere. Not cryptographic.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

namespace detail {

/// Returns the same result as crc32c(), computed with tables on any processor.
[[nodiscard]] std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
