// The version of muster; CMake reads the version from here.
#pragma once

#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0

/// A number for comparisons: 10000 * major + 100 * minor + patch.
#define MUSTER_VERSION (MUSTER_VERSION_MAJOR * 10000 + MUSTER_VERSION_MINOR * 100 + MUSTER_VERSION_PATCH)
