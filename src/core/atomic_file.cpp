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

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>

#include "descriptor.hpp"

namespace muster { inline namespace v0 {
namespace {

using detail::descriptor;

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw configuration_error("cannot write '" + path + "' (" + why + "); choose a file in a folder that may be written");
}

/// Whether `path` is a device or a pipe, for which there is nothing to replace.
bool is_special(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return false;
  if (S_ISDIR(status.st_mode)) fail(path, "it is a folder");
  return !S_ISREG(status.st_mode);
}

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

std::string folder_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

/// A file without a name in the folder of `path`, which a killed process leaves nothing of; none where the file system
/// has no such files, or nothing could give it a name later.
descriptor open_unnamed(const std::string& path, unsigned mode) {
  if (::access("/proc/self/fd", X_OK) != 0) return {};
  return descriptor(::open(folder_of(path).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
}

std::string path_of(int file) { return "/proc/self/fd/" + std::to_string(file); }

}  // namespace

std::string temporary_folder() {
  std::error_code wrong;
  const auto folder = std::filesystem::temp_directory_path(wrong);
  if (!wrong) return folder.string();
  throw configuration_error("no temporary file can be made (TMPDIR is '" + environment("TMPDIR").value_or("") +
                            "': " + wrong.message() + "); set it to a folder that can be written, or unset it");
}

void detail::remove_abandoned_files(const std::string& folder, std::string_view of) noexcept {
  // "NAME.PID-N.tmp"
  const auto is_ours = [&](std::string_view name) {
    constexpr std::string_view ending = ".tmp", digits = "0123456789";
    if (!name.ends_with(ending)) return false;
    name.remove_suffix(ending.size());
    for (const char before : {'-', '.'}) {
      const auto other = name.find_last_not_of(digits);
      if (other == std::string_view::npos || other + 1 == name.size() || name[other] != before) return false;
      name = name.substr(0, other);
    }
    return of.empty() || name == of;
  };
  try {
    std::error_code trouble;
    for (const auto& entry : std::filesystem::directory_iterator(folder, trouble)) {
      if (!is_ours(entry.path().filename().string())) continue;
      const descriptor file(::open(entry.path().c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      if (file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0) std::filesystem::remove(entry.path(), trouble);
    }
  } catch (...) {  // no memory for a name: they stay
  }
}

void detail::flush_folder(const std::string& path) noexcept {
  try {
    const descriptor opened(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened.get() >= 0) ::fsync(opened.get());
  } catch (...) {  // no memory for the name: the file is there all the same
  }
}

void require_writable(const std::string& path) {
  if (is_special(path)) {
    if (::access(path.c_str(), W_OK) != 0) fail(path, std::strerror(errno));
    return;
  }
  (void)atomic_file(path);
}

void write_atomically(const std::string& path, std::string_view text) {
  if (is_special(path)) {
    std::FILE* const file = std::fopen(path.c_str(), "we");
    const bool written = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
    if (file == nullptr || std::fclose(file) != 0 || !written) fail(path, std::strerror(errno));
    return;
  }
  atomic_file file(path);
  file.write(text);
  file.commit();
}

atomic_file::atomic_file(std::string path, unsigned mode) : path_(std::move(path)) {
  if (path_.empty()) fail(path_, "the name is empty");
  if (is_special(path_)) fail(path_, "it is a device or a pipe");
  descriptor made = open_unnamed(path_, mode);
  if (!made) detail::remove_abandoned_files(folder_of(path_), std::filesystem::path(path_).filename().string());
  while (!made) {
    choose_name();
    made = descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (made || errno == EEXIST) continue;
    const std::string why = std::strerror(errno);
    name_.clear();
    fail(path_, why);
  }
  if (!name_.empty()) {  // of a file system without such files: the lock tells remove_abandoned_files() that we live
    (void)::flock(made.get(), LOCK_EX | LOCK_NB);
  }
  file_.reset(::fdopen(made.get(), "w"));
  require(file_ != nullptr);
  (void)made.release();
  // Of its own: glibc takes no size without one. Large writes give the page cache large folios, which are read faster.
  buffer_ = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  (void)std::setvbuf(file_.get(), buffer_.get(), _IOFBF, buffer_bytes);
}

atomic_file::~atomic_file() {
  if (file_ && !name_.empty()) ::unlink(name_.c_str());
}

void atomic_file::choose_name() {
  static std::atomic<unsigned> count{0};  // threads of one process write their own files
  name_ = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
}

void atomic_file::require(bool is_done) {
  if (is_done) return;
  const std::string why = std::strerror(errno);
  if (!name_.empty()) ::unlink(name_.c_str());
  file_.reset();
  fail(path_, why);
}

void atomic_file::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;  // data() may be null, which fwrite must not have
  require(file_ && std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size());
  size_ += bytes.size();
}

void atomic_file::flush_to_disk() {
  require(file_ && std::fflush(file_.get()) == 0 && ::fsync(::fileno(file_.get())) == 0);
}

void atomic_file::commit() {
  flush_to_disk();
  while (name_.empty()) {  // a name beside it first: only a renamed file takes another one's place
    choose_name();
    const int linked =
        ::linkat(AT_FDCWD, path_of(::fileno(file_.get())).c_str(), AT_FDCWD, name_.c_str(), AT_SYMLINK_FOLLOW);
    if (linked == 0) break;
    const int why = std::exchange(errno, 0);
    name_.clear();  // a killed process with our number may have left one of this name
    errno = why;
    require(why == EEXIST);
  }
  require(std::fclose(file_.release()) == 0);  // for some file systems only that tells of an error
  require(::rename(name_.c_str(), path_.c_str()) == 0);
  detail::flush_folder(path_);
}

}}  // namespace muster::v0
