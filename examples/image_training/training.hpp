// The training of a model on images: each rank's work from the first step to the report.
#pragma once

#include <muster/comm/context.hpp>

#include "options.hpp"

namespace images {

/// Runs a program that trains on images, and returns its exit status.
int run_program(int argc, char** argv, const program& which);

}  // namespace images
