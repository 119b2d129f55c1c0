// Sizes in whole lines, pages or whatever memory comes in.
#pragma once

#include <cstddef>

namespace muster { inline namespace v0 { namespace detail {

/// The least multiple of `to` that is not below `size`.
[[nodiscard]] constexpr std::size_t round_up(std::size_t size, std::size_t to) noexcept {
  return (size + to - 1) / to * to;
}

}}}  // namespace muster::v0::detail
