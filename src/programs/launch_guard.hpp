// Finds, counts and ends the processes that a job's processes started, even when muster-launch was killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

/// A launcher's processes, identified by a variable that each process inherits, and by their parents.
class launch_guard {
 public:
  /// Starts a process in its own session that kills all these processes when this process has ended, for any reason.
  /// Must be called before any thread starts. Orphaned descendants become this process's children.
  launch_guard(int argc, char** argv);

  /// Name of the variable. Its value identifies the process that is started as `number`.
  static constexpr std::string_view variable = "LAUNCHED_BY_MUSTER";
  [[nodiscard]] std::string value_for(int number) const { return id_ + "." + std::to_string(number); }

  /// Sends a signal, or 0 for none, to all processes that `number` and its descendants started. Returns their number.
  std::size_t signal_started_by(int number, int signal) const;
  /// Sends a signal to all numbers' processes, and to every descendant.
  std::size_t signal_all(int signal) const;

 private:
  std::string id_;
};
