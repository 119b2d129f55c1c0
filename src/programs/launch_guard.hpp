// Finds, counts and ends the processes that a job's processes started, even when muster-launch was killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

/// All processes that a launcher has started, directly or indirectly. A process is identified by an inherited
/// environment variable, or by its parent.
class launch_guard {
 public:
  /// Starts the guard: a process in its own session that kills all these processes when this process has ended, for any
  /// reason. `argc` and `argv` are main's: the guard overwrites its copy of the arguments. Must be called before any
  /// thread starts. Orphaned descendants become this process's children.
  launch_guard(int argc, char** argv);

  /// Name of the variable. Its value for the process that is started with `number` is `value_for(number)`.
  static constexpr std::string_view variable = "LAUNCHED_BY_MUSTER";
  [[nodiscard]] std::string value_for(int number) const { return id_ + "." + std::to_string(number); }

  /// Sends a signal, or 0 for none, to the process that was started with the number `process` and to its descendants.
  /// Returns how many processes there are.
  std::size_t signal_started_by(int process, int signal) const;
  /// Does the same for the processes of all numbers and for all descendants of this process.
  std::size_t signal_all(int signal) const;

 private:
  std::string id_;
};
