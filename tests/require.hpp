// A check that throws: for ranks on threads of their own, and for programs without Catch2.
#pragma once

#include <stdexcept>

namespace test {

inline void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

}  // namespace test
