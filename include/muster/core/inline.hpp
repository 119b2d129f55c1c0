// The switch between the compiled library and the headers alone. The library's CMake targets and .pc files define
// MUSTER_COMPILED. Without it every detail/*-inl.hpp is included by its header, its functions are inline, and the
// program has the transport tcp and what builds on it.
#pragma once

#ifdef MUSTER_COMPILED
#define MUSTER_INLINE
#else
#define MUSTER_INLINE inline
#define MUSTER_HAS_TCP 1
extern "C" [[gnu::used]] inline const char muster_headers_alone = 1;  // the library refuses a program that has it
#endif
