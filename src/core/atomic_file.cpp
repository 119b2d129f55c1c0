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

/// An empty file of a fresh name beside `path`, with the permissions that any new file gets, or fewer.
std::pair<descriptor, std::string> create_beside(const std::string& path, unsigned mode) {
  static std::atomic<unsigned> count{0};  // threads of one process write their own files
  for (;;) {
    std::string name = path + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
    descriptor file(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file.get() >= 0) return {std::move(file), std::move(name)};
    if (errno != EEXIST) fail(path, std::strerror(errno));  // a killed process with our number may have left one
  }
}

constexpr std::size_t flushed_at = std::size_t{1} << 20;

bool write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

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
    const descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.get() < 0 || !write_all(file.get(), text)) fail(path, std::strerror(errno));
    return;
  }
  atomic_file file(path);
  file.write(text);
  file.commit();
}

atomic_file::atomic_file(std::string path, unsigned mode) : path_(std::move(path)) {
  if (path_.empty()) fail(path_, "the name is empty");
  if (is_special(path_)) fail(path_, "it is a device or a pipe");
  auto [file, name] = create_beside(path_, mode);
  file_ = file.release();
  name_ = std::move(name);
}

atomic_file::~atomic_file() {
  if (file_ >= 0) ::close(file_);
  if (!name_.empty()) ::unlink(name_.c_str());
}

void atomic_file::give_up() {
  const std::string why = std::strerror(errno);
  ::unlink(std::exchange(name_, {}).c_str());
  fail(path_, why);
}

void atomic_file::flush() {
  if (!write_all(file_, {reinterpret_cast<const char*>(pending_.data()), pending_.size()})) give_up();
  pending_.clear();
}

void atomic_file::write(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  if (pending_.size() + bytes.size() < flushed_at) {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    return;
  }
  flush();
  if (!write_all(file_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()})) give_up();
}

void atomic_file::flush_to_disk() {
  flush();
  if (::fsync(file_) != 0) give_up();
}

void atomic_file::commit() {
  flush_to_disk();
  if (::close(std::exchange(file_, -1)) != 0) give_up();  // for some file systems only that tells of an error
  if (::rename(name_.c_str(), path_.c_str()) != 0) give_up();
  name_.clear();
  detail::flush_folder(path_);
}

}  // namespace muster::inline v0
