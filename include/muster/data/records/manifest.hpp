// The list of the files of a folder of records: it only ever grows.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// One file of a folder of records.
struct manifest_entry {
  std::string file;  ///< its name in the folder
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;   ///< of the file
  std::uint64_t digest = 0;  ///< as in its footer

  friend bool operator==(const manifest_entry&, const manifest_entry&) = default;
};

/// The name of the manifest in its folder.
inline constexpr std::string_view manifest_name = "MANIFEST";

}}  // namespace muster::v0
