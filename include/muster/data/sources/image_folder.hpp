// Folders of images with a subfolder for each class, as in ILSVRC.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The files FOLDER/CLASS/NAME.JPEG (or .jpeg, .jpg, .png, in any case), unchanged. A record_source of
/// record_form::bytes with the number of the class as its label. Classes are numbered in the order of their names:
/// numbers first, in numeric order, then other names in byte order. The schema has the names. Files are ordered by the
/// bytes of their names. Hidden folders and files, folders without such files, and other files are left out and listed
/// in notes(). A file that has been deleted, or whose size has changed, is a bad record.
///
/// Opening reads the name and the size of every file. The digest covers both. host_state() also covers the file times.
class image_folder : public detail::source_with_facts {
 public:
  /// Throws data_error for a folder that cannot be read or has no such file.
  explicit image_folder(const std::string& folder);

  /// The functions of record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// Returns the state of the files on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Returns the names of the classes, in the order of their numbers.
  [[nodiscard]] const std::vector<std::string>& classes() const noexcept;
  /// Returns the file of a record.
  [[nodiscard]] data_location location_of(sample_id id) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(record_source<image_folder>);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::image_folder;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
