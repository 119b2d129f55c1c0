// Files that lie on a server of HTTP or S3.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// How files of a server are kept at hand.
///
/// A file is fetched in blocks of 1 MiB, of records when they are wanted, of others at opening, and each block once for
/// all ranks of a host: they lie in a folder that the ranks and later runs share, each with a checksum.
struct http_options {
  /// That folder; empty: muster-cache-UID in the folder for temporary files, a configuration_error where others may
  /// write into that. It is made if missing.
  std::string cache = {};
  /// Bytes of all caches in the folder. The least recently used other ones go; where that is not enough the first
  /// blocks alone are kept, and each rank fetches the others whenever it wants them, into at most 192 MiB of memory.
  /// Files of other formats than muster's own records need room for all of them.
  std::uint64_t disk = std::numeric_limits<std::uint64_t>::max();
  /// A server that fails, or sends nothing, is tried again for so long, with pauses that grow.
  seconds timeout{60};
};

namespace detail {

/// Makes these addresses known, and returns true; defined in muster::http.
bool register_http() noexcept;

#ifdef MUSTER_HAS_HTTP
// As for muster::zlib: the variable takes the object file out of the static archive.
[[maybe_unused]] static const bool http_is_registered = register_http();
#endif

}  // namespace detail

}}  // namespace muster::v0
