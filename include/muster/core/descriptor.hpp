// Resources of the system or of libraries with a single owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace muster { inline namespace v0 { namespace detail {

/// A deleter for std::unique_ptr that calls a function.
template <auto Function>
struct freed_by {
  void operator()(auto* resource) const noexcept { (void)Function(resource); }
};

/// Moves a descriptor to a number above the standard streams, whose numbers are free in a process that began without
/// them. Otherwise text that the process prints would be written into the file. Returns the new number, or -1 with
/// errno.
inline int above_standard(int fd) noexcept {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return moved;
}

/// Opens /dev/null for each closed standard stream, so that files that other libraries open later get other numbers.
/// Ignores SIGXFSZ, so that writes beyond the file size limit (ulimit -f) fail instead of ending the process.
inline void prepare_process() noexcept {
  int opened = ::open("/dev/null", O_RDWR);
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDWR);
  if (opened >= 0) ::close(opened);
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) ::signal(SIGXFSZ, SIG_IGN);
}

/// A file descriptor. Its number is above the standard streams.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) noexcept : fd_(above_standard(fd)) {}
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes the descriptor now, since some file systems report an error only on close.
  [[nodiscard]] bool close() noexcept { return ::close(release()) == 0; }

 private:
  int fd_ = -1;
};

}}}  // namespace muster::v0::detail
