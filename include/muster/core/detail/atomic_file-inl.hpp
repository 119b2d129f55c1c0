#pragma once

#include <muster/core/atomic_file.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <muster/core/descriptor.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {
namespace detail {

using detail::descriptor;

[[noreturn]] inline void fail(const std::string& path, const std::string& reason) {
  throw configuration_error("cannot write '" + path + "' (" + reason + "); choose a file in a writable folder");
}

/// Returns true if `path` is a device or a pipe, which cannot be replaced.
inline bool is_special(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) fail(path, "it is a folder");
  return !S_ISREG(status.st_mode);
}

inline constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

inline std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// Opens a file without a name in the folder of `path`, of which a killed process leaves nothing. Returns an empty
/// descriptor where the file system does not support such files, or where no name could be given to the file later.
inline descriptor open_unnamed(const std::string& path, unsigned mode) {
  if (::access("/proc/self/fd", X_OK) != 0) return {};
  return descriptor(::open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
}

inline std::string path_of(int file) { return "/proc/self/fd/" + std::to_string(file); }

}  // namespace detail

MUSTER_INLINE std::string temporary_folder() {
  std::error_code wrong;
  const auto folder = std::filesystem::temp_directory_path(wrong);
  if (!wrong) return folder.string();
  throw configuration_error("cannot create temporary files (TMPDIR is '" + environment("TMPDIR").value_or("") +
                            "': " + wrong.message() + "); set it to a writable folder, or unset it");
}

MUSTER_INLINE void detail::flush_standard_output() {
  const bool has_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) detail::fail("standard output", std::strerror(errno));
  if (has_failed) detail::fail("standard output", "an earlier write failed");
}

MUSTER_INLINE void detail::remove_abandoned_files(const std::string& folder, std::string_view name_filter) noexcept {
  // The pattern is "NAME.PID-N.tmp".
  const auto is_ours = [&](std::string_view name) {
    constexpr std::string_view ending = ".tmp", digits = "0123456789";
    if (!name.ends_with(ending)) return false;
    name.remove_suffix(ending.size());
    for (const char before : {'-', '.'}) {
      const auto last = name.find_last_not_of(digits);
      if (last == std::string_view::npos || last + 1 == name.size() || name[last] != before) return false;
      name = name.substr(0, last);
    }
    return name_filter.empty() || name == name_filter;
  };
  try {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
      if (!is_ours(entry.path().filename().string())) continue;
      const descriptor file(::open(entry.path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove(entry.path(), ignored);
    }
  } catch (...) {  // out of memory for a name: the files remain
  }
}

MUSTER_INLINE void detail::flush_folder(const std::string& path) noexcept {
  try {
    const descriptor opened(::open(detail::folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() >= 0) ::fsync(opened.get());
  } catch (...) {  // out of memory for the name: the file exists anyway
  }
}

MUSTER_INLINE void require_writable(const std::string& path) {
  if (detail::is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0) detail::fail(path, std::strerror(errno));
    return;
  }
  (void)atomic_file(path);
}

MUSTER_INLINE void write_atomically(const std::string& path, std::string_view text) {
  if (detail::is_special(path)) {
    std::FILE* const file = std::fopen(path.c_str(), "we");
    const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file == nullptr || std::fclose(file) != 0 || !written) detail::fail(path, std::strerror(errno));
    return;
  }
  atomic_file file(path);
  file.write(text);
  file.commit();
}

MUSTER_INLINE atomic_file::atomic_file(std::string path, unsigned mode) : path_(std::move(path)) {
  if (path_.empty()) detail::fail(path_, "the name is empty");
  if (detail::is_special(path_)) detail::fail(path_, "it is a device or a pipe");
  detail::descriptor opened = detail::open_unnamed(path_, mode);
  if (!opened)
    detail::remove_abandoned_files(detail::folder_of(path_), std::filesystem::path(path_).filename().string());
  while (!opened) {
    choose_name();
    opened = detail::descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (opened || errno == EEXIST) continue;
    const std::string reason = std::strerror(errno);
    name_.clear();
    detail::fail(path_, reason);
  }
  if (!name_.empty()) {  // no unnamed files: the lock shows remove_abandoned_files() that the writer lives
    (void)::flock(opened.get(), LOCK_EX | LOCK_NB);
  }
  file_.reset(::fdopen(opened.get(), "w"));
  require(file_ != nullptr);
  (void)opened.release();
  // glibc ignores the size unless the buffer is provided. Large writes give the page cache large folios, which are
  // faster to read.
  buffer_ = std::make_unique_for_overwrite<char[]>(detail::buffer_bytes);
  (void)std::setvbuf(file_.get(), buffer_.get(), _IOFBF, detail::buffer_bytes);
}

MUSTER_INLINE atomic_file::~atomic_file() {
  if (file_ && !name_.empty()) ::unlink(name_.c_str());
}

MUSTER_INLINE void atomic_file::choose_name() {
  static std::atomic<unsigned> count{0};  // threads in a process write separate files
  name_ = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
}

MUSTER_INLINE void atomic_file::require(bool is_done) {
  if (is_done) return;
  const std::string reason = std::strerror(errno);
  if (!name_.empty()) ::unlink(name_.c_str());
  file_.reset();
  detail::fail(path_, reason);
}

MUSTER_INLINE void atomic_file::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // data() may be null, which fwrite does not allow
  require(file_ && std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size());
  size_ += bytes.size();
}

MUSTER_INLINE void atomic_file::flush_to_disk() {
  require(file_ && std::fflush(file_.get()) == 0 && ::fsync(::fileno(file_.get())) == 0);
}

MUSTER_INLINE void atomic_file::commit() {
  flush_to_disk();
  while (name_.empty()) {  // links it to a temporary name first, since only a rename replaces another file
    choose_name();
    const int linked =
        ::linkat(AT_FDCWD, detail::path_of(::fileno(file_.get())).c_str(), AT_FDCWD, name_.c_str(), AT_SYMLINK_FOLLOW);
    if (linked == 0) break;
    const int why = std::exchange(errno, 0);
    name_.clear();  // a killed process with the same number may have left this name
    errno = why;
    require(why == EEXIST);
  }
  require(std::fclose(file_.release()) == 0);  // some file systems report an error only here
  require(::rename(name_.c_str(), path_.c_str()) == 0);
  detail::flush_folder(path_);
}

}}  // namespace muster::v0
