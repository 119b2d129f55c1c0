// Catch2, whichever of its two major versions is installed.
#pragma once

#include <string>

#if MUSTER_CATCH2_VERSION >= 3
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif

/// Returns a matcher of texts that contain `part`, for CHECK_THROWS_WITH and CHECK_THAT.
inline auto contains(const std::string& part) {
#if MUSTER_CATCH2_VERSION >= 3
  return Catch::Matchers::ContainsSubstring(part);
#else
  return Catch::Contains(part);
#endif
}
