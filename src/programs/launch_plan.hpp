// The command line of muster-launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

/// The plan of a job on one host.
struct launch_plan {
  int ranks = 1;
  int min = 1;
  int max = 0;
  int restarts = 0;
  bool elastic = true;
  double grace = 10;  ///< In seconds.
  bool quiet = false;
  std::string control;  ///< Path of a socket, or empty.
  std::vector<std::string> command;
};

/// Parses the command line. Returns nothing if it answered --help or --version. Throws configuration_error for an
/// invalid command line.
[[nodiscard]] std::optional<launch_plan> read_launch_plan(int argc, char** argv);
