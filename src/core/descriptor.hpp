// What the system or a library gave, with one owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace muster { inline namespace v0 { namespace detail {

/// Gives something back by this function: the deleter of a std::unique_ptr.
template <auto Function>
struct freed_by {
  void operator()(auto* what) const noexcept { (void)Function(what); }
};

/// Moves a descriptor out of the numbers of the standard streams, which are free in a process that began without them:
/// text that the process prints would go into the file. Returns the new number, or -1 with errno.
inline int above_standard(int number) noexcept {
  if (number < 0 || number > STDERR_FILENO) return number;
  const int moved = ::fcntl(number, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int reason = errno;
  ::close(number);
  errno = reason;
  return moved;
}

/// Opens /dev/null as each standard stream that is closed: what other libraries open afterwards has other numbers too.
/// Has writes beyond the limit of file sizes (ulimit -f) fail, where they would end the process.
inline void prepare_process() noexcept {
  int opened = ::open("/dev/null", O_RDWR);
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDWR);
  if (opened >= 0) ::close(opened);
  struct sigaction present {};
  if (::sigaction(SIGXFSZ, nullptr, &present) == 0 && present.sa_handler == SIG_DFL) ::signal(SIGXFSZ, SIG_IGN);
}

/// A file descriptor. Its number is above those of the standard streams.
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
  /// Closes now, because for some file systems only that tells of an error.
  [[nodiscard]] bool close() noexcept { return ::close(release()) == 0; }

 private:
  int number_ = -1;
};

}}}  // namespace muster::v0::detail
