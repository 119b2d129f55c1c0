// Rounding of sizes to lines, pages or other units.
#pragma once

#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

/// Returns the smallest multiple of `unit` that is not below `size`.
[[nodiscard]] constexpr std::size_t round_up(std::size_t size, std::size_t unit) noexcept {
  return (size + unit - 1) / unit * unit;
}

}}}  // namespace muster::v0::detail
