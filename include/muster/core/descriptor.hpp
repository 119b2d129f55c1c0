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
inline int above_standard(int number) noexcept {
  if (number < 0 || number > STDERR_FILENO) return number;
  const int moved = ::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int reason = errno;
  ::close(number);
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
  explicit descriptor(int number) noexcept : number_(above_standard(number)) {}
  descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }
  /// Closes the descriptor now, since some file systems report an error only on close.
  [[nodiscard]] bool close() noexcept { return ::close(release()) == 0; }

 private:
  int number_ = -1;
};

}}}  // namespace muster::v0::detail
