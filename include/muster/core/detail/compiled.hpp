// Marks an object of the compiled library, so that headers alone refuse a program that has it
// (core/detail/env-inl.hpp). Included first by the sources that CMake makes of the detail/*-inl.hpp.
#pragma once

extern "C" [[gnu::used]] inline const char muster_compiled_library = 1;
