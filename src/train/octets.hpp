// Bytes as collectives take them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace muster::inline v0::detail {

/// The same bytes as numbers: collectives move these.
[[nodiscard]] inline std::span<std::uint8_t> octets(std::span<std::byte> bytes) noexcept {
  return {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace muster::inline v0::detail
