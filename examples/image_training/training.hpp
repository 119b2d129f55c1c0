// The training of a model on images: what each rank does from the first step to the report.
#pragma once

#include <muster/comm/context.hpp>

#include "options.hpp"

namespace images {

/// The whole of a program that trains on images, and its exit status.
int run_program(int argc, char** argv, const program& which);

}  // namespace images
