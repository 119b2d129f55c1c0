// Records that were made once and are kept: what the cache step of a pipeline stands on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include <muster/core/clock.hpp>
#include <muster/data/permutation.hpp>  // sample_id

namespace muster::inline v0 {

/// Where a cache keeps records, and for how long.
struct cache_options {
  /// Bytes of records in the memory of this process; 0: none. When not all fit, the least recently used go.
  std::size_t memory = 0;
  /// A folder for records on disk, which the ranks of a host and later runs share; empty: none. It is made if missing.
  std::string folder = {};
  /// Bytes of all caches in the folder: the least recently used other ones go, and if that is not enough the first
  /// records alone are kept.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
  /// On disk, records that were made longer ago are made anew.
  seconds fresh_for{std::numeric_limits<double>::infinity()};
};

/// What a cache did so far, in this process.
struct cache_statistics {
  std::uint64_t hits = 0;        ///< records that were there
  std::uint64_t misses = 0;      ///< records that had to be made
  std::uint64_t hit_bytes = 0;   ///< of the hits
  std::uint64_t miss_bytes = 0;  ///< of the misses
  std::uint64_t bytes = 0;       ///< of records that this process keeps in memory and put on disk
  std::uint64_t evictions = 0;   ///< records that left memory for want of it
};

namespace detail {

/// Whose records a cache keeps. Two of equal key and sizes are taken for the same.
struct cache_identity {
  std::string name;              ///< for messages
  std::uint64_t key = 0;         ///< of source, steps and schema
  bool versioned = true;         ///< whether the steps say when they change
  std::uint64_t size = 0;        ///< records
  std::size_t record_bytes = 0;  ///< 0: they differ
  std::size_t label_width = 0;   ///< floats beside each
  /// Writes the sizes of all records; only called when they differ.
  std::function<void(std::span<std::uint64_t>)> sizes = {};
};

/// Records by id, in memory, on disk or both. Any thread may call any function.
class record_cache {
 public:
  /// Throws configuration_error for options that say nothing, or a folder for steps without a version. A folder that
  /// cannot be used, because the disk is full or it may not be written, is a warning: nothing is kept there then.
  record_cache(cache_options options, cache_identity identity);
  record_cache(record_cache&&) noexcept;
  record_cache& operator=(record_cache&&) noexcept;
  ~record_cache();

  /// Where record `id` lies if it is here and stays while this object does; else null, which says nothing: get() may
  /// have it. Writes its labels.
  [[nodiscard]] std::span<const std::byte> view(sample_id id, std::span<float> labels) const noexcept;
  /// Asks the processor for a record that get() will want next.
  void fetch_ahead(sample_id id) const noexcept;
  /// Copies record `id` and its labels if it is here.
  [[nodiscard]] bool get(sample_id id, std::span<std::byte> to, std::span<float> labels);
  /// Keeps a record that was not here.
  void put(sample_id id, std::span<const std::byte> record, std::span<const float> labels);
  [[nodiscard]] cache_statistics statistics() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace detail

}  // namespace muster::inline v0
