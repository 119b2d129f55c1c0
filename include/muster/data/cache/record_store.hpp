// The storage of cached records, in the memory of a process or in a file that the ranks of a host share. Private to the
// cache step.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/round_up.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/cursor.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The description of a set of cached records, and the offset of each record when all records are concatenated on
/// 64-byte boundaries. Two sets with equal keys and sizes are treated as equal.
struct cached_records {
  std::string name;              ///< for messages
  std::uint64_t key = 0;         ///< digest of source, steps and schema
  std::uint64_t size = 0;        ///< number of records
  std::size_t record_bytes = 0;  ///< size of every record; 0: sizes differ
  std::size_t label_bytes = 0;   ///< size of a record's labels
  /// For records whose sizes differ: size and offset of every record. `begins` has one more element, the end of the
  /// last record.
  std::vector<std::uint64_t> lengths = {}, begins = {};

  /// Returns the offset of a record; for `sample` == size, the size of all records together.
  [[nodiscard]] std::uint64_t begin(std::uint64_t sample) const noexcept {
    return record_bytes != 0 ? sample * muster::detail::round_up(record_bytes, buffer_alignment) : begins[sample];
  }
  /// Returns the size of a record in bytes.
  [[nodiscard]] std::size_t length(std::uint64_t sample) const noexcept {
    return record_bytes != 0 ? record_bytes : lengths[sample];
  }
};

/// The storage for the first records of a source, as many as fit. Records are never evicted. An epoch requests each
/// record once, so the hit rate is equal to the share of stored records. With eviction of the least recently used
/// records there would be no hits.
///
/// A file belongs to one combination of source, steps and versions, and is stored in a folder of such files:
///
///     header | a word for each record | labels | records
///
/// A word is 0 if the record is absent. Otherwise it has the record's checksum and a mark that depends on the record's
/// id. The word is written after the record. Any number of processes fill a file together. A process that reads a
/// record for the first time compares the checksum. A process or a machine that stops at any moment loses only the
/// records that were not yet written. All disk space is reserved before the first record is written. A full disk is
/// therefore detected at this point and nowhere else. Any thread may call any function.
class record_store {
 public:
  /// Stores records in up to `budget` bytes of memory. `records` must outlive this object. Throws std::bad_alloc.
  record_store(const cached_records& records, std::size_t budget);
  /// Stores records in a file of up to `most` bytes in the folder. Throws if no record can be stored in the folder.
  record_store(const cached_records& records, const cache_options& options, std::uint64_t most);
  ~record_store();

  /// Returns the number of records that fit. The stored records are the first record_count() records of the source.
  [[nodiscard]] std::uint64_t record_count() const noexcept { return record_count_; }
  /// Returns the size of the file on disk, in bytes.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// Returns false for a file that other processes have filled and that this process may only read.
  [[nodiscard]] bool writable() const noexcept { return writable_; }
  /// Deletes the name of the file, so that no other process opens it. The kernel deletes the file when the last process
  /// closes it.
  void remove_name() const noexcept { ::unlink(path_.c_str()); }
  /// Returns the record, and writes its labels to `labels`. Returns an empty span if the record is absent. The record's
  /// memory remains valid as long as this object.
  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) noexcept;
  /// Stores a record. Returns false if nothing was written.
  bool put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) noexcept;

 private:
  struct header;
  static constexpr std::uint8_t absent = 0, busy = 1, present = 2;

  // Returns the offset of the labels in a file of `record_count` records.
  [[nodiscard]] std::uint64_t labels_offset(std::uint64_t record_count) const noexcept;
  // Returns the offset of the records in such a file.
  [[nodiscard]] std::uint64_t records_offset(std::uint64_t record_count) const noexcept;
  // Opens the file, which it creates or replaces if necessary, and maps it.
  void open_file(const cache_options& options);
  // Reserves the disk space of a new file and writes its header.
  void start_file(const cache_options& options);
  // Deletes the least recently used other caches until the file fits into `cache_options::disk`.
  void make_room(const cache_options& options) const;
  // Returns true if the file is complete, has the header of these records, and is not older than `fresh_for`.
  [[nodiscard]] bool has_valid_header(seconds fresh_for) const;
  // Returns the header of a file of these records that was created at that time, in seconds since 1970.
  [[nodiscard]] header header_of(std::int64_t created) const;
  // Returns the record's word in the file.
  [[nodiscard]] std::atomic<std::uint64_t>& stored_word(sample_id id) const noexcept;
  // Computes the word from the record and the labels that are in the file.
  [[nodiscard]] std::uint64_t expected_word(sample_id id) const noexcept;

  const cached_records& records_;
  std::uint64_t record_count_;  // number of stored records; these are the first records of the source
  // State of every record. For a file, `present` also means that the checksum was compared.
  std::vector<std::atomic<std::uint8_t>> states_;
  buffer<std::byte> memory_;
  std::byte* record_bytes_ = nullptr;
  // Separate from the records, so that labels are available while records are still being loaded.
  std::byte* label_bytes_ = nullptr;

  // The following members are used for a file.
  std::string path_;
  muster::detail::descriptor file_;
  bool writable_ = true;
  std::uint64_t file_bytes_ = 0;
  std::byte* mapped_ = nullptr;
};

}}}}  // namespace muster::v0::data::detail
