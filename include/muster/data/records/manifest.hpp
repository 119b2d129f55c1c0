// The list of the files of a folder of records: it only ever grows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace muster::inline v0 {

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

/// The entries of a manifest's text, in order; `path` is for errors. Entries come in groups that were appended
/// together; a group with an incomplete last line is what a killed writer left, and does not count. Throws data_error
/// with the line for anything else.
[[nodiscard]] std::vector<manifest_entry> parse_manifest(std::string_view text, const std::string& path);

/// The entries of the folder, as they are now. Throws data_error.
[[nodiscard]] std::vector<manifest_entry> read_manifest(const std::string& folder);

/// Appends entries, all or none of which readers will see, and flushes them to the disk; makes the manifest if there is
/// none. Takes turns with other processes
/// by a lock that the kernel takes back from the dead, and first removes what a killed one left of its lines. Throws
/// configuration_error when the folder cannot be written, data_error when the manifest is damaged.
void append_to_manifest(const std::string& folder, std::span<const manifest_entry> entries);

}  // namespace muster::inline v0
