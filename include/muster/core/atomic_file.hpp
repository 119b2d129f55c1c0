// Files that are there whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace muster::inline v0 {

/// Throws configuration_error when `write_atomically` to `path` cannot succeed: no such folder, no permission, a
/// folder in its place. For programs that write their result after hours of work and should say so before. Leaves
/// nothing behind; a path that may be written now can of course be lost later.
void require_writable(const std::string& path);

/// Makes `text` the content of the file, which readers see as it was before or as it is after, never in between: the
/// text is written to a new file beside it, flushed to the disk, and renamed. A device or pipe such as /dev/stdout is
/// written to directly. Throws configuration_error when that fails, and then leaves the file as it was.
void write_atomically(const std::string& path, std::string_view text);

}  // namespace muster::inline v0
