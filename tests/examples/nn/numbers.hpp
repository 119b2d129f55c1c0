// Numbers for tests of the layers, equal to the numbers in resnet20_step.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "network.hpp"

namespace test {

/// Returns number k of a list: in [-0.5, 0.5), pseudo-random, and exact.
inline double number(std::uint64_t list, std::size_t k) {
  auto h = static_cast<std::uint32_t>(k + 1 + list * 7919);
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return static_cast<double>(h) / 4294967296.0 - 0.5;
}

template <class T>
std::vector<T> numbers(std::uint64_t list, std::size_t count, double scale = 1, double offset = 0) {
  std::vector<T> list_of_numbers(count);
  for (std::size_t k = 0; k < count; ++k) list_of_numbers[k] = static_cast<T>(offset + scale * number(list, k));
  return list_of_numbers;
}

/// Memory of any element type for a network's parameters and gradients, in place of an arena.
template <class T>
struct parameter_memory {
  std::vector<std::vector<T>> values, gradients;

  explicit parameter_memory(nn::network<T>& net) {
    for (const auto& shape : net.shapes()) {
      values.emplace_back(shape.size());
      gradients.emplace_back(shape.size());
    }
    for (std::size_t i = 0; i < values.size(); ++i) net.bind(i, values[i], gradients[i]);
  }
  void clear_gradients() {
    for (auto& each : gradients) std::fill(each.begin(), each.end(), T{0});
  }
};

}  // namespace test
