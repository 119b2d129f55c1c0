// Catch2, whichever of its two major versions is installed.
#pragma once

#if MUSTER_CATCH2_VERSION >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
