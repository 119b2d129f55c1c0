// A file of a manifest's lines, open for a writer; private to the writers of records.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <muster/data/records/manifest.hpp>
#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// What the text of a manifest says, and how long it is up to the end of its last whole group.
struct manifest_content {
  std::vector<manifest_entry> entries;
  std::size_t bytes = 0;
  std::string statistics;  ///< of the newest note of them; empty: there is none
  std::string schema;      ///< the same, as files have it
};

/// A line that is no file of the folder, but a note about it, begins with a dot; those that are not known are skipped.
inline constexpr const char* statistics_note = ".statistics ";
inline constexpr const char* schema_note = ".schema ";

[[nodiscard]] std::string path_of_manifest(const std::string& folder);
/// What the text of a manifest says, its entries in order; `path` is for errors. Entries come in groups that were
/// appended together; a group with an incomplete last line is what a killed writer left, and does not count. Throws
/// data_error with the line for anything else.
[[nodiscard]] manifest_content contents_of(std::string_view text, const std::string& path);
/// The same of a folder, as it is now. Throws data_error, too, where it has no manifest, if that is required.
[[nodiscard]] manifest_content read_contents(const std::string& folder, bool required = true);

/// Made if it is missing, and locked against other writers as long as this object is there.
class manifest_file {
 public:
  /// Another process that has it locked is waited for, or else a configuration_error. Throws configuration_error when
  /// it cannot be written, data_error when it is damaged.
  manifest_file(std::string path, bool wait);

  /// What it has.
  [[nodiscard]] const std::vector<manifest_entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Appends entries, all or none of which readers will see, and flushes them to the disk; first removes what a killed
  /// writer left of its lines.
  void append(std::span<const manifest_entry> entries);
  /// The same of a note, which has no line end.
  void note(const std::string& text);

 private:
  void write(const std::string& lines);
  void require(bool done) const;

  std::string path_;
  descriptor file_;
  std::vector<manifest_entry> entries_;
  std::size_t whole_ = 0;  // bytes up to the end of the last whole group
};

}}}  // namespace muster::v0::detail
