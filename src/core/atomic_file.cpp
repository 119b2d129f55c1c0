#include <muster/core/atomic_file.hpp>

#include <fcntl.h>
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

namespace muster::inline v0 {
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

}  // namespace

std::string temporary_folder() {
  std::error_code wrong;
  const auto folder = std::filesystem::temp_directory_path(wrong);
  if (!wrong) return folder.string();
  throw configuration_error("no temporary file can be made (TMPDIR is '" + environment("TMPDIR").value_or("") +
                            "': " + wrong.message() + "); set it to a folder that can be written, or unset it");
}

void detail::flush_folder(const std::string& path) noexcept {
  try {
    const auto slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    const descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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
  static std::atomic<unsigned> count{0};  // threads of one process write their own files
  if (path_.empty()) fail(path_, "the name is empty");
  if (is_special(path_)) fail(path_, "it is a device or a pipe");
  descriptor made;
  do {
    name_ = path_ + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
    made = descriptor(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  } while (!made && errno == EEXIST);  // a killed process with our number may have left one
  if (!made) fail(path_, std::strerror(errno));
  file_.reset(::fdopen(made.get(), "w"));
  require(file_ != nullptr);
  (void)made.release();
  // Of its own: glibc takes no size without one. Large writes give the page cache large folios, which are read faster.
  buffer_ = std::make_unique_for_overwrite<char[]>(buffer_bytes);
  (void)std::setvbuf(file_.get(), buffer_.get(), _IOFBF, buffer_bytes);
}

atomic_file::~atomic_file() {
  if (file_) ::unlink(name_.c_str());
}

void atomic_file::require(bool is_done) {
  if (is_done) return;
  const std::string why = std::strerror(errno);
  ::unlink(name_.c_str());
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
  require(std::fclose(file_.release()) == 0);  // for some file systems only that tells of an error
  require(::rename(name_.c_str(), path_.c_str()) == 0);
  detail::flush_folder(path_);
}

}  // namespace muster::inline v0
