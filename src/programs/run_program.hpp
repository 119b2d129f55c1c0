// The main functions of the programs.
#pragma once

#include <cstdio>
#include <exception>

#include <muster/core/atomic_file.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/error.hpp>

/// Calls `body` and returns its exit status. Prints an error in one line after `prefix`, and returns the status of the
/// error. Standard output that cannot be written is an error.
template <class Body>
int run_program(const char* prefix, const Body& body) noexcept {
  muster::detail::prepare_process();
  try {
    const int status = body();
    muster::detail::flush_standard_output();
    return status;
  } catch (...) {
    std::fprintf(stderr, "%s: %s\n", prefix, muster::describe(std::current_exception()).c_str());
    return muster::exit_status_of(std::current_exception());
  }
}
