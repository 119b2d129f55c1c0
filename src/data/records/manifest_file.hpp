// A file of a manifest's lines, open for a writer; private to the writers of records.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <muster/data/records/manifest.hpp>
#include "../../core/descriptor.hpp"

namespace muster::inline v0::detail {

/// Made if it is missing, and locked against other writers as long as this object is there.
class manifest_file {
 public:
  /// Another process that has it locked is waited for, or else a configuration_error. Throws configuration_error when
  /// it cannot be written, data_error when it is damaged.
  manifest_file(std::string path, bool wait);

  /// What it has.
  [[nodiscard]] const std::vector<manifest_entry>& entries() const noexcept { return entries_; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  /// Appends entries, all or none of which readers will see, and flushes them to the disk.
  void append(std::span<const manifest_entry> entries);

 private:
  void require(bool done) const;

  std::string path_;
  descriptor file_;
  std::vector<manifest_entry> entries_;
  std::size_t whole_ = 0;  // bytes up to the end of the last whole group
};

}  // namespace muster::inline v0::detail
