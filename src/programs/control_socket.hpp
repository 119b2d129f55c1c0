// The socket at which a program accepts requests from its user's other processes, one request in each line.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include <muster/core/descriptor.hpp>

/// A Unix socket that serves one connection at a time; further connections wait. Each line is a request, and the answer
/// is one line.
class control_socket {
 public:
  /// Listens at `path`, and replaces the socket file of a program that was killed. Throws configuration_error if
  /// listening fails.
  explicit control_socket(std::string path);
  ~control_socket();

  /// Returns the descriptor that is readable when turn() has work.
  [[nodiscard]] int descriptor() const { return (connection_ ? connection_ : listener_).get(); }
  /// Accepts a connection and replies to its requests without waiting. `answer` returns the reply to a request; both
  /// are without the end of the line. Closes a connection that sends nothing for a second.
  void turn(const std::function<std::string(const std::string&)>& answer);

 private:
  void close_connection();

  std::string path_;
  muster::detail::descriptor listener_;
  muster::detail::descriptor connection_;
  std::string received_;                         // the beginning of the next request
  std::chrono::steady_clock::time_point until_;  // deadline for the next request
};
