// What a model learns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nn {

/// How a parameter starts.
enum class start : std::uint8_t {
  zeros,
  ones,
  kaiming,  ///< normal with variance 2 / fan, for layers with a ReLU behind (He et al. 2015, arXiv:1502.01852)
  uniform   ///< uniform in +-1 / sqrt(fan), as PyTorch starts a dense layer and its bias
};

/// One tensor; views of memory that another object owns, an arena for instance.
template <class T>
struct parameter {
  std::string name;
  std::vector<std::size_t> extents;
  std::size_t index = 0;  ///< in the network's list
  start how = start::zeros;
  double fan = 1;
  std::span<T> values{};
  std::span<T> gradient{};
};

}  // namespace nn
