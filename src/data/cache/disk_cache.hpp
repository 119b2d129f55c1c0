// Records in a file that the ranks of a host share; private to the cache step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <muster/data/cache.hpp>
#include "../../core/descriptor.hpp"
#include "memory_cache.hpp"

namespace muster::inline v0::detail {

/// Which records a cache keeps. Two of equal key and sizes are taken for the same.
struct cache_identity {
  std::string name;                       ///< for messages
  std::uint64_t key = 0;                  ///< of source, steps and schema
  bool versioned = true;                  ///< whether the steps say when they change
  std::uint64_t size = 0;                 ///< records
  std::size_t record_bytes = 0;           ///< 0: they differ
  std::size_t label_width = 0;            ///< floats beside each
  std::vector<std::uint64_t> sizes = {};  ///< of all records, when they differ
};

/// The file of one source, steps and version of both, in a folder of such files.
///
///     header | a word for each record | records, each on a 64-byte boundary
///
/// A word is 0 for a record that is not there, else its checksum and a mark that depends on its id. It is written
/// behind its record. Any number of processes fill a file together. A process that reads a record the first time
/// compares its checksum: whatever stopped in between, a process or the machine, costs only what it had not yet
/// written. All of the room is reserved before the first record comes: a full disk is met there and nowhere else.
class disk_cache {
 public:
  /// Null, with a warning, where nothing can be kept. `places` outlives the result.
  [[nodiscard]] static std::unique_ptr<disk_cache> open(const cache_options& options, const cache_identity& identity,
                                                        const cached_places& places);
  ~disk_cache();
  disk_cache(const disk_cache&) = delete;
  disk_cache& operator=(const disk_cache&) = delete;

  /// The record if it is here; it stays where it is.
  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) const noexcept;
  /// False when nothing was written.
  bool put(sample_id id, std::span<const std::byte> record, std::span<const float> labels) noexcept;

 private:
  struct shape {
    std::uint64_t kept = 0;  // records, from the first on
    std::uint64_t records = 0;
    std::uint64_t size = 0;
  };
  struct header;
  disk_cache(const cache_options& options, const cache_identity& identity, const cached_places& places);

  [[nodiscard]] header header_of(std::int64_t made) const;
  [[nodiscard]] bool has_header() const;
  void open_file();
  void start_file();
  void make_room();
  [[nodiscard]] const std::atomic<std::uint64_t>& word(sample_id id) const noexcept;
  [[nodiscard]] std::uint64_t word_of(sample_id id, std::span<const std::byte> record,
                                      std::span<const std::byte> labels) const noexcept;

  const cache_options& options_;
  const cache_identity& identity_;
  const cached_places& places_;
  std::string path_;
  shape shape_;
  descriptor file_;
  const std::byte* mapped_ = nullptr;
  mutable std::vector<std::atomic<bool>> checked_;  // records: this process has compared the checksum
  std::atomic<bool> writable_{false};
};

}  // namespace muster::inline v0::detail
