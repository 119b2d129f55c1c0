// The processes of this host: their ids, whether they live, and how one ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "../../core/descriptor.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// A process as no later one can be mistaken for: its number and when it started; 0 where the system does not tell.
struct process_identity {
  pid_t process = 0;
  std::uint64_t started = 0;

  [[nodiscard]] static process_identity own();
  bool operator==(const process_identity&) const = default;
};

/// In which world of process numbers this process is: equal where a number means the same process.
[[nodiscard]] std::string process_numbers();

/// An eye on a process of this host.
class life {
 public:
  life() = default;
  /// Throws error when no descriptor is left for it.
  explicit life(const process_identity& whose);

  /// A file that is readable when the process has ended; -1 where there is none.
  [[nodiscard]] int file() const noexcept { return file_.get(); }
  /// Whether it has ended: proof.
  [[nodiscard]] bool ended() const noexcept;
  /// Whether it was told to stand still (SIGSTOP, a debugger).
  [[nodiscard]] bool is_stopped() const;
  /// Ends it (SIGKILL), if it is still that very process.
  void kill() const noexcept;

 private:
  descriptor file_;
  pid_t process_ = 0;
  bool was_over_ = false;
};

}}}  // namespace muster::v0::detail
