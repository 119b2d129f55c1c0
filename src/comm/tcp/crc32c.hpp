// CRC-32C (Castagnoli, as in RFC 3720, appendix B.4): finds what a network or a bug did to bytes, nothing a person did.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster::inline v0::detail {

/// The checksum of what `before` is the checksum of, followed by `bytes`. By the processor's own instruction where it
/// has one (about 20 GB/s), else by tables (about 1.5 GB/s).
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

/// The same by tables alone, for tests.
[[nodiscard]] std::uint32_t crc32c_by_table(std::span<const std::byte> bytes, std::uint32_t before = 0) noexcept;

}  // namespace muster::inline v0::detail
