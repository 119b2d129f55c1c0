// Literals for sizes in bytes.
#pragma once

#include <cstddef>

namespace muster { inline namespace v0 { inline namespace literals {

/// Literals 64_KiB, 1_MiB, 2_GiB: powers of 1,024. `using namespace muster::literals` makes them available.
[[nodiscard]] consteval std::size_t operator""_KiB(unsigned long long count) { return count << 10; }
[[nodiscard]] consteval std::size_t operator""_MiB(unsigned long long count) { return count << 20; }
[[nodiscard]] consteval std::size_t operator""_GiB(unsigned long long count) { return count << 30; }

}  // namespace literals
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
