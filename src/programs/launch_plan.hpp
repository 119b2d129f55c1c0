// The command line of muster-launch.
#pragma once

#include <optional>
#include <string>
#include <vector>

/// The plan of a job on one host.
struct launch_plan {
  int ranks = 1;     ///< Ranks to start.
  int min = 1;       ///< With fewer ranks the job waits.
  int max = 0;       ///< Highest number of ranks.
  int restarts = 0;  ///< Number of ranks that may be restarted; with elastic off, of restarts of the job.
  bool elastic = true;
  double grace = 10;                 ///< Seconds from a SIGTERM until a rank is killed.
  bool quiet = false;                ///< Prints nothing about ranks.
  std::string control;               ///< Path of a socket, or empty.
  std::vector<std::string> command;  ///< The program and its arguments.
};

/// Parses the command line. Returns nothing if it answered --help or --version. Throws configuration_error for an
/// invalid command line.
[[nodiscard]] std::optional<launch_plan> read_launch_plan(int argc, char** argv);
