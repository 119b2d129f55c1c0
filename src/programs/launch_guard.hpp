// What the processes of a job have started, found and ended, also when muster-launch was killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

/// The processes of one launcher, known by a variable that each of them inherits, and by their parents.
class launch_guard {
 public:
  /// Starts a process of its own session that kills them all when this process has ended, however it ends. Call it
  /// before there are threads. What a descendant leaves behind becomes a child of this process.
  launch_guard(int argc, char** argv);

  /// The variable's name, and its value for the process that is started as `number`.
  static constexpr std::string_view variable = "LAUNCHED_BY_MUSTER";
  [[nodiscard]] std::string value_for(int number) const { return id_ + "." + std::to_string(number); }

  /// Sends a signal, or 0 for none, to what `number` and its descendants have started. Returns how many there are.
  std::size_t signal_started_by(int number, int signal) const;
  /// Of all numbers, and to every descendant of this process.
  std::size_t signal_all(int signal) const;

 private:
  std::string id_;
};
