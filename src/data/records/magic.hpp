// How files of records begin and end.
#pragma once

#include <cstdint>

namespace muster::inline v0::detail::records {

// A byte that no text has, a name, and line ends that a transfer as text would change.
inline constexpr char header_magic[9] = "\x8dMUSTR\r\n";
inline constexpr char footer_magic[9] =
    "\x8d"
    "ENDMR\r\n";
inline constexpr std::uint32_t format_version = 1;

}  // namespace muster::inline v0::detail::records
