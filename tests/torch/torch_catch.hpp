// Catch2 beside LibTorch, whose logging has a macro CHECK, too: the one of Catch2 is the last.
#pragma once

#include <torch/torch.h>

#ifndef CATCH_VERSION_MAJOR  // Catch2 is not included yet
#undef CHECK
#endif
#include "catch.hpp"
