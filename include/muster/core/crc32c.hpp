// The checksum of records in files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster { inline namespace v0 {

/// The CRC32C (Castagnoli's polynomial; RFC 3720, B.4) of `bytes` behind those with the CRC32C `before`: finds every
/// error of up to three bits, every burst of up to 32, and any other but one in 2^32. By the processor's own
/// instruction where it has one (x86 with SSE4.2), three chains at a time, else by tables; the same result everywhere.
/// Not cryptographic.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

namespace detail {

/// crc32c() by tables, whatever the processor has.
[[nodiscard]] std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace detail

}}  // namespace muster::v0
