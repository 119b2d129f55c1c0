// What muster-launch's command line asks for.
#pragma once

#include <optional>
#include <string>
#include <vector>

/// A job of one host.
struct launch_plan {
  int ranks = 1;
  int min = 1;
  int max = 0;
  int restarts = 0;
  bool elastic = true;
  double grace = 10;  ///< seconds
  bool quiet = false;
  std::string control;  ///< the path of a socket, or nothing
  std::vector<std::string> command;
};

/// Nothing after a question, which is answered. Throws configuration_error for what cannot be.
[[nodiscard]] std::optional<launch_plan> read_launch_plan(int argc, char** argv);
