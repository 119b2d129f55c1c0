// Bitwise comparison of numbers.
#pragma once

#include <cstring>
#include <vector>

namespace test {

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

}  // namespace test
