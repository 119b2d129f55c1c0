// Records that a cache keeps, in the memory of a process or in a file that the ranks of a host share; private to the
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
#include <muster/data/cache.hpp>
#include <muster/data/cursor.hpp>
#include "../../core/descriptor.hpp"
#include "../../core/round_up.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Which records a cache keeps, and where each begins when all lie one behind another on 64-byte boundaries. Two of
/// equal key and sizes are taken for the same.
struct cached_records {
  std::string name;              ///< for messages
  std::uint64_t key = 0;         ///< of source, steps and schema
  std::uint64_t size = 0;        ///< records
  std::size_t record_bytes = 0;  ///< 0: they differ
  std::size_t label_bytes = 0;   ///< beside each
  /// Of records that differ: the bytes of each, and where it begins, and the end.
  std::vector<std::uint64_t> lengths = {}, begins = {};

  [[nodiscard]] std::uint64_t begin(std::uint64_t id) const noexcept {
    return record_bytes != 0 ? id * round_up(record_bytes, buffer_alignment) : begins[id];
  }
  [[nodiscard]] std::size_t length(std::uint64_t id) const noexcept {
    return record_bytes != 0 ? record_bytes : lengths[id];
  }
};

/// As many of the records as there is room for, from the first on, and none of them ever goes: an epoch asks for each
/// record once, so that the share which is kept is the share of hits, and what was used last would be used last again.
///
/// A file is of one source, steps and version of both, in a folder of such files:
///
///     header | a word for each record | labels | records
///
/// A word is 0 for a record that is not there, else its checksum and a mark that depends on its id. It is written
/// behind its record. Any number of processes fill a file together. A process that reads a record the first time
/// compares its checksum: whatever stopped in between, a process or the machine, costs only what it had not yet
/// written. All of the room is reserved before the first record comes: a full disk is met there and nowhere else.
/// Any thread may call any function.
class record_store {
 public:
  /// In up to so many bytes of memory. `records` outlive this. Throws std::bad_alloc.
  record_store(const cached_records& records, std::size_t budget);
  /// In the folder, where they take up to `most` bytes. Throws when nothing can be kept there.
  record_store(const cached_records& records, const cache_options& where, std::uint64_t most);
  ~record_store();

  /// Records that there is room for, from the first on.
  [[nodiscard]] std::uint64_t kept() const noexcept { return kept_; }
  /// Bytes that they take on the disk.
  [[nodiscard]] std::uint64_t file_bytes() const noexcept { return file_bytes_; }
  /// False of a file that others have filled and this process may only read.
  [[nodiscard]] bool writable() const noexcept { return writable_; }
  /// From now on no process finds the file; it goes with the last one that has it.
  void remove_name() const noexcept { ::unlink(path_.c_str()); }
  /// The record if it is here, and its labels; it stays where it is.
  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) noexcept;
  /// False when nothing was written.
  bool put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) noexcept;

 private:
  struct header;
  static constexpr std::uint8_t absent = 0, busy = 1, here = 2;

  [[nodiscard]] std::uint64_t labels_at(std::uint64_t kept) const noexcept;
  [[nodiscard]] std::uint64_t records_at(std::uint64_t kept) const noexcept;
  void open_file(const cache_options& where);
  void start_file(const cache_options& where);
  void make_room(const cache_options& where) const;
  [[nodiscard]] bool has_header(seconds fresh_for) const;
  [[nodiscard]] header header_of(std::int64_t made) const;
  [[nodiscard]] std::atomic<std::uint64_t>& word(sample_id id) const noexcept;
  [[nodiscard]] std::uint64_t word_of(sample_id id) const noexcept;

  const cached_records& records_;
  std::uint64_t kept_;                           // records, from the first on
  std::vector<std::atomic<std::uint8_t>> here_;  // and, of a file, compared with its checksum
  buffer<std::byte> memory_;
  std::byte* record_bytes_ = nullptr;
  std::byte* label_bytes_ = nullptr;  // apart, so that they are found without a wait while records are on their way

  // Of a file.
  std::string path_;
  descriptor file_;
  bool writable_ = true;
  std::uint64_t file_bytes_ = 0;
  std::byte* mapped_ = nullptr;
};

}}}  // namespace muster::v0::detail
