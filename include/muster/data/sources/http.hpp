// Files on an HTTP or S3 server.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace data {

/// Options of the local copies of files on a server.
///
/// A file is fetched in blocks of 1 MiB: blocks with records when the records are read, and other blocks at opening.
/// Each block is fetched once for all ranks of a host and stored with a checksum in a folder that the ranks and later
/// runs share.
struct http_options {
  /// Folder for the blocks. Empty: muster-cache-UID in the folder for temporary files, which is a configuration_error
  /// if other users may write to muster-cache-UID. The folder is created if missing.
  std::string cache = {};
  /// Limit for all caches in the folder, in bytes. The least recently used other caches are deleted. If that is not
  /// enough, only the first blocks are kept, and each rank fetches other blocks on each use, into at most 192 MiB of
  /// memory. Files in other formats than muster's own records need room for the whole file.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
  /// Time for which requests to a server that fails or does not reply are repeated, with increasing pauses.
  seconds timeout{60};
};

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
