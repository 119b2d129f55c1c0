// Records of a fixed size that files store in their memory format: the common base of CIFAR, IDX, NPY and raw files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 { namespace data {

/// A field (or a label) of every record in a section of a file, at `offset`, `offset + stride` and so on.
struct record_stretch {
  std::shared_ptr<const mapped_file> file;
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint64_t count = 0;
};

/// The values of a label for all records, section after section, as numbers of a single type.
struct label_column {
  dtype type = dtype::uint8;
  std::vector<record_stretch> stretches;
};

namespace detail {

/// Returns the section that covers the first `count` records in a file, or all records up to its end if `count` is 0: a
/// record every `stride` bytes, after the first `skip` bytes. Throws data_error for a file that ends within a record,
/// or before the last record.
[[nodiscard]] record_stretch stretch_of_file(const std::string& path, std::uint64_t skip, std::uint64_t stride,
                                             std::uint64_t count = 0);

/// The positions of the records in a sequence of sections. Holds plain pointers into files that the caller holds.
class record_places {
 public:
  record_places() = default;
  /// Takes sections with items of `item_bytes` each. Throws data_error naming `path` if a section extends beyond its
  /// file.
  record_places(std::span<const record_stretch> stretches, std::uint64_t item_bytes, const std::string& path);

  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] const std::byte* operator[](sample_id id) const noexcept {
    const part* at = parts_.data();
    if (parts_.size() > 1) at = find(id);
    return at->first + (id - at->first_id) * at->stride;
  }

 private:
  struct part {
    const std::byte* first;
    std::uint64_t stride;
    std::uint64_t first_id;
  };
  [[nodiscard]] const part* find(sample_id id) const noexcept;

  std::vector<part> parts_;
  std::uint64_t size_ = 0;
};

}  // namespace detail

/// Records of a fixed size in mapped files. A mapped_record_source. Created by open_cifar10(), open_idx(), open_npy(),
/// open_raw(), or by the user for similar formats.
///
/// A record is bad if a label is not finite, or if conversion to float32 would round a whole number to another whole
/// number.
///
/// The digest covers the schema and the contents of the files: all bytes of files up to 256 MiB, and 64 MiB in evenly
/// spaced parts of larger files. host_state() detects further changes. The files must not change or be shortened while
/// they are open.
class fixed_records : public detail::source_with_facts {
 public:
  /// Takes a schema of the fixed form with a column for each label. `threads` threads compute the digest. Throws
  /// data_error if a section extends beyond its file, the counts differ, or there are no records. Throws
  /// configuration_error for any other schema.
  fixed_records(std::string name, record_schema schema, std::vector<record_stretch> records,
                std::vector<label_column> labels = {}, int threads = 0);

  /// The functions of mapped_record_source.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] static constexpr bool mapped() noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const {
    if (state_->labels_may_fail) check_labels(id);
    return record(id);
  }
  /// Returns the state of the files on this host. See any_record_source.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Returns label `which` of record `id`, or NaN if the record is bad because of the label.
  [[nodiscard]] float label(sample_id id, std::size_t which = 0) const noexcept {
    const auto& column = state_->labels[which];
    return column.convert(column.places[id]);
  }

 private:
  struct label_places {
    detail::record_places places;
    float (*convert)(const std::byte*) noexcept;
    std::string (*text)(const std::byte*);
  };
  struct state : detail::source_facts {
    std::uint64_t record_bytes = 0;
    detail::record_places records;
    std::vector<label_places> labels;
    bool labels_may_fail = false;
    std::vector<std::shared_ptr<const mapped_file>> files;
  };
  [[nodiscard]] std::span<const std::byte> record(sample_id id) const noexcept {
    return {state_->records[id], state_->record_bytes};
  }
  /// Throws data_error for a record that is bad because of a label.
  void check_labels(sample_id id) const;

  std::shared_ptr<const state> state_;
};
static_assert(mapped_record_source<fixed_records>);

namespace detail {

/// Converts an element of the type to a float. Null for dtype::none.
using to_float = float (*)(const std::byte*) noexcept;
[[nodiscard]] to_float float_reader(dtype type) noexcept;

}  // namespace detail

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
