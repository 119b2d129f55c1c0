// Records of one size that lie in files as they are in memory: what CIFAR, IDX, NPY and raw files have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/record_source.hpp>
#include <muster/data/sources/mapped_file.hpp>

namespace muster { inline namespace v0 {

/// One item of every record of a stretch of a file: at `offset`, `offset + stride` and so on.
struct record_stretch {
  std::shared_ptr<const mapped_file> file;
  std::uint64_t offset = 0;
  std::uint64_t stride = 0;
  std::uint64_t count = 0;
};

/// A label of every record, stretch after stretch, as numbers of one type.
struct label_column {
  dtype type = dtype::uint8;
  std::vector<record_stretch> stretches;
};

namespace detail {

/// The stretch of all records of a file: one every `stride` bytes, behind the first `skip`. Throws data_error for a
/// file that ends within a record.
[[nodiscard]] record_stretch stretch_of_file(const std::string& path, std::uint64_t skip, std::uint64_t stride);

/// Where each record of a row of stretches is. Plain pointers into files that the caller holds.
class record_places {
 public:
  record_places() = default;
  /// Records of `item_bytes` each. Throws data_error naming `path` when a stretch leaves its file.
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

/// Records of one size in mapped files; a mapped_record_source. Made by open_cifar10(), open_idx(), open_npy(),
/// open_raw(), or by hand for other formats of the kind.
///
/// A record is bad if a label is not finite, or if a float32 would round it to another whole number.
///
/// The digest is of the schema and of the bytes of the files: all of them up to 256 MiB a file, beyond that 64 MiB
/// spread evenly over it, so that host_state() tells more. The files must not change or be shortened while they are
/// open.
class fixed_records : public detail::source_with_facts {
 public:
  /// `schema` is of the fixed form; each of its labels has a column. Throws data_error when a stretch leaves its file
  /// or the counts differ, and configuration_error for a schema that is not of this kind.
  fixed_records(std::string name, record_schema schema, std::vector<record_stretch> records,
                std::vector<label_column> labels = {}, int threads = 0);

  /// As mapped_record_source has them.
  void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const noexcept;
  void read(std::span<const sample_id> ids, const record_rows& rows, std::vector<bad_record>* bad = nullptr) const;
  [[nodiscard]] static constexpr bool mapped() noexcept { return true; }
  [[nodiscard]] std::span<const std::byte> view(sample_id id) const {
    if (state_->labels_may_fail) check_labels(id);
    return record(id);
  }
  /// As any_record_source has them.
  [[nodiscard]] std::optional<std::uint64_t> host_state() const;
  [[nodiscard]] std::optional<std::uint64_t> host_state_now() const;
  /// Label `which` of record `id`; NaN if the record is bad because of it.
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

/// What makes a float of an element of this type; null for dtype::none.
using to_float = float (*)(const std::byte*) noexcept;
[[nodiscard]] to_float float_reader(dtype type) noexcept;

}  // namespace detail

}}  // namespace muster::v0
