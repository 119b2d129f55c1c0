// The manifest as a text file that a writer has open. Private to the readers and writers of records.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/core/descriptor.hpp>
#include <muster/data/records/manifest.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The parsed text of a manifest. `bytes` is the length of the text up to the end of its last complete group.
struct manifest_content {
  std::vector<manifest_entry> entries;
  std::size_t bytes = 0;
  std::string statistics;  ///< the newest statistics note; empty: there is none
  std::string schema;      ///< the newest schema note, in the format of the files' schema
  std::string division;    ///< the newest division note: the rule of the shards and their number
};

/// Prefixes of notes. A note is a line about the folder that does not name a file. It begins with a dot. Readers skip
/// unknown notes.
inline constexpr const char* statistics_note = ".statistics ";
inline constexpr const char* schema_note = ".schema ";
inline constexpr const char* division_note = ".division ";

[[nodiscard]] std::string path_of_manifest(const std::string& folder);
/// Parses the text of a manifest. The entries are in order. `path` is used in errors. Entries are grouped: the entries
/// of a group were appended together. A last group that is incomplete was left by a killed writer and is ignored.
/// Throws data_error with the line for any other error.
[[nodiscard]] manifest_content contents_of(std::string_view text, const std::string& path);
/// Parses the current manifest of a folder. Throws data_error, too, if the folder has no manifest and `required` is
/// true.
[[nodiscard]] manifest_content read_contents(const std::string& folder, bool required = true);

/// A manifest that is open for writing. It is created if missing, and locked against other writers during the life of
/// this object.
class manifest_file {
 public:
  /// Waits for another process that has the file locked if `wait` is true, and otherwise throws configuration_error.
  /// Throws configuration_error if the file cannot be written, and data_error if it is damaged.
  manifest_file(std::string path, bool wait);

  /// Returns the entries of the manifest.
  [[nodiscard]] const std::vector<manifest_entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Appends entries and flushes them to the disk. Readers see all the entries or none. Incomplete lines of a killed
  /// writer are removed first.
  void append(std::span<const manifest_entry> entries);
  /// Appends a note, without a line end, in the same way.
  void note(const std::string& text);

 private:
  void write(const std::string& lines);
  void require(bool done) const;

  std::string path_;
  muster::detail::descriptor file_;
  std::vector<manifest_entry> entries_;
  std::size_t complete_bytes_ = 0;  // number of bytes up to the end of the last complete group
};

}}}}  // namespace muster::v0::data::detail
