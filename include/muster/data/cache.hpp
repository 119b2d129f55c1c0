// A pipeline step that caches the results of the previous steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The storage of a cache: its places, sizes and time limit.
struct cache_options {
  /// Memory of this process for records, in bytes. 0: none. If not all records fit, only the first records are kept. An
  /// epoch uses each record once, so keeping the first records gives a hit rate equal to their share, whereas evicting
  /// the least recently used records would give no hits.
  std::size_t memory = 0;
  /// Folder for records on disk, shared by the ranks of a host and by later runs. Empty: none. The folder is created if
  /// missing.
  std::string folder = {};
  /// Limit for all caches in the folder, in bytes. The least recently used other caches are deleted. If that is not
  /// enough, only the first records are kept.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
  /// Maximum age of the file with the records, from its creation. An older file is replaced, and its records are
  /// computed again. A source that cannot detect changes (a query) is cached on disk only if a limit is set.
  seconds fresh_for{std::numeric_limits<double>::infinity()};
};

/// The counters of a cache in this process.
struct cache_statistics {
  std::uint64_t hits = 0;        ///< records that were found in the cache
  std::uint64_t misses = 0;      ///< records that had to be computed
  std::uint64_t hit_bytes = 0;   ///< size of the hits
  std::uint64_t miss_bytes = 0;  ///< size of the misses
  std::uint64_t bytes = 0;       ///< size of the records that this process keeps in memory or has written to disk
};

/// A tag for a cache in memory without a size limit: `cache(in_memory)`.
struct in_memory_t {
  explicit in_memory_t() = default;
};
inline constexpr in_memory_t in_memory{};

/// A step of a pipeline: records are computed by the previous steps once, and cached. After map() the step caches the
/// results of map(), else the records of the source. After augment() the step is a configuration_error.
///
/// On disk a cache is a file for each combination of source, steps and their versions, shared by the ranks of a host.
/// The version includes the state of the source's files on this host (any_record_source::host_state). Each record has a
/// checksum. A process that is killed at any moment leaves no invalid record that would be accepted, and its complete
/// records are reused.
struct cache {
  cache_options options;
  explicit cache(in_memory_t) : options{.memory = std::numeric_limits<std::size_t>::max()} {}
  explicit cache(std::string folder) : options{.folder = std::move(folder)} {}
  explicit cache(cache_options requested) : options(std::move(requested)) {}
};

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::cache;
using data::cache_options;
using data::cache_statistics;
using data::in_memory;
using data::in_memory_t;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
