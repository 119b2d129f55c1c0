// The parsing of command lines in the programs.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include <muster/core/error.hpp>

/// Parses the command line. Returns true if --help or --version was requested and has been answered. Throws
/// configuration_error for an invalid command line.
inline bool is_answered(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return false;
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    return true;
  } catch (const CLI::ParseError& wrong) {
    throw muster::configuration_error(std::string(wrong.what()) + " (--help lists all flags)");
  }
}
