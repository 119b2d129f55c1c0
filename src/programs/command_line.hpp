// How the programs read their command lines.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include <muster/core/error.hpp>

/// True when --help or --version was asked for, and is answered. Throws configuration_error for what cannot be.
inline bool is_answered(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return false;
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    return true;
  } catch (const CLI::ParseError& wrong) {
    throw muster::configuration_error(std::string(wrong.what()) + " (--help lists what there is)");
  }
}
