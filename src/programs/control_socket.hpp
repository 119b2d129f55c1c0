// The socket at which a program takes requests of other processes of its user, a line each.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "../core/descriptor.hpp"

/// A Unix socket that serves one connection at a time; further ones wait. Each line is a request, and has a line for an
/// answer.
class control_socket {
 public:
  /// What is left there of a program that was killed is replaced. Throws configuration_error if it cannot listen there.
  explicit control_socket(std::string path);
  ~control_socket();

  /// Can be read when there is something to do.
  [[nodiscard]] int descriptor() const { return (connection_ ? connection_ : listener_).get(); }
  /// Does what there is to do, and waits for nothing. A connection that says nothing for a second is closed.
  void turn(const std::function<std::string(const std::string&)>& answer);

 private:
  void close_connection();

  std::string path_;
  muster::detail::descriptor listener_;
  muster::detail::descriptor connection_;
  std::string received_;
  std::chrono::steady_clock::time_point until_;
};
