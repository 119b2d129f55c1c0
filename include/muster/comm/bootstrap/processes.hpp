// Processes on the local host: their identities, their state, and how to kill one.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include <muster/core/descriptor.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A process, distinguished from later processes with the same number: its number, and its start time in ticks since
/// the boot (0 if the system does not report it).
struct process_identity {
  pid_t process = 0;
  std::uint64_t started = 0;

  [[nodiscard]] static process_identity own();
  bool operator==(const process_identity&) const = default;
};

/// Returns the identity of the calling process's namespaces of process numbers and of times: equal for processes to
/// which a `process_identity` means the same process.
[[nodiscard]] std::string process_namespaces();

/// Observes a process on the local host.
class life {
 public:
  life() = default;
  /// Starts to observe a process. Throws error when no descriptor is left.
  explicit life(const process_identity& identity);

  /// Returns a descriptor that is readable when the process has ended; -1 if there is none.
  [[nodiscard]] int pidfd() const noexcept { return file_.get(); }
  /// Returns true if the process has certainly ended. False does not prove that it lives: the system may not support
  /// pidfds.
  [[nodiscard]] bool ended() const noexcept;
  /// Returns true if the process is stopped (SIGSTOP, a debugger).
  [[nodiscard]] bool is_stopped() const;
  /// Kills the process (SIGKILL), if it is still the same process. Does nothing if `file_` is -1.
  void kill() const noexcept;

 private:
  descriptor file_;
  pid_t process_ = 0;
  bool was_over_ = false;
};

}}}  // namespace muster::v0::detail
