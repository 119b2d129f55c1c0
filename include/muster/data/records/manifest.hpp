// The list of files in a folder of records. Entries are only ever added.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 { namespace data {

/// A file in a folder of records.
struct manifest_entry {
  std::string file;  ///< file name in the folder
  std::uint64_t records = 0;
  std::uint64_t bytes = 0;   ///< size of the file
  std::uint64_t digest = 0;  ///< the digest in the file's footer

  friend bool operator==(const manifest_entry&, const manifest_entry&) = default;
};

/// File name of the manifest in its folder.
inline constexpr std::string_view manifest_name = "MANIFEST";

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
