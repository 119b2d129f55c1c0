// Folders of images, a folder for each class, as ILSVRC has them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/bad_records.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {

/// The files FOLDER/CLASS/NAME.JPEG (or .jpeg, .jpg, in any case) as they are: a record_source of record_form::bytes,
/// with the number of the class as its label. Classes are numbered in the order of their names: numbers first, as
/// numbers, then others by their bytes; the schema has the names. Files follow each other in the order of their names'
/// bytes. Hidden folders and files, folders without such files, and other files are left out, as notes() say. A file
/// that is not there any more, or has another size, is a bad record.
///
/// Opening looks at the name and the size of each file, of which the digest is, and host_state() at its times too.
class image_folder : public detail::source_with_facts {
 public:
  /// Throws data_error for a folder that cannot be read or has no such file.
  explicit image_folder(const std::string& folder);

  /// As record_source has them.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// The names of the classes, in the order of their numbers.
  [[nodiscard]] const std::vector<std::string>& classes() const noexcept;
  /// The file of a record.
  [[nodiscard]] data_location where(sample_id id) const;

 private:
  struct state;
  std::shared_ptr<const state> state_;
};
static_assert(record_source<image_folder>);

}}  // namespace muster::v0
