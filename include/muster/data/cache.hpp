// The step of a pipeline that keeps what the steps before it made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// Where a cache keeps records, and for how long.
struct cache_options {
  /// Bytes of records in the memory of this process; 0: none. When not all fit, the first ones alone are kept: an epoch
  /// asks for each once, so that their share is the share of hits, and the least recently used would be none.
  std::size_t memory = 0;
  /// A folder for records on disk, which the ranks of a host and later runs share; empty: none. It is made if missing.
  std::string folder = {};
  /// Bytes of all caches in the folder: the least recently used other ones go, and if that is not enough the first
  /// records alone are kept.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
  /// On disk, records that were made longer ago are made anew. A source that does not know whether it has changed (a
  /// query) is kept on disk only with a limit here.
  seconds fresh_for{std::numeric_limits<double>::infinity()};
};

/// What a cache did so far, in this process.
struct cache_statistics {
  std::uint64_t hits = 0;        ///< records that were there
  std::uint64_t misses = 0;      ///< records that had to be made
  std::uint64_t hit_bytes = 0;   ///< of the hits
  std::uint64_t miss_bytes = 0;  ///< of the misses
  std::uint64_t bytes = 0;       ///< of records that this process keeps in memory and put on disk
};

/// Says that a cache is in memory, of any size: `cache(in_memory)`.
struct in_memory_t {
  explicit in_memory_t() = default;
};
inline constexpr in_memory_t in_memory{};

/// A step of a pipeline: records are made by the steps before it once, and kept. Behind map() it keeps what that made,
/// else the records as they were read. Behind augment() it is a configuration_error.
///
/// On disk a cache is a file for each source, steps and version of both, shared by the ranks of a host. The state of
/// the source's files on this host (any_record_source::host_state) is part of its version. Each record has a checksum,
/// so that a process that is killed at any moment leaves nothing that is taken for more than it is, and what was kept
/// is used again.
struct cache {
  cache_options options;
  explicit cache(in_memory_t) : options{.memory = std::numeric_limits<std::size_t>::max()} {}
  explicit cache(std::string folder) : options{.folder = std::move(folder)} {}
  explicit cache(cache_options asked) : options(std::move(asked)) {}
};

}}  // namespace muster::v0
