// The parameters of a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nn {

/// The initialisation of a parameter.
enum class start : std::uint8_t {
  zeros,
  ones,
  kaiming,  ///< Normal with variance 2 / fan, for layers followed by a ReLU (He et al. 2015, arXiv:1502.01852).
  uniform   ///< Uniform in +-1 / sqrt(fan), as in PyTorch for a dense layer and its bias.
};

/// A parameter tensor: views of memory that another object owns, for instance an arena.
template <class T>
struct parameter {
  std::string name;
  std::vector<std::size_t> extents;
  std::size_t index = 0;  ///< Index in the network's list.
  start initialisation = start::zeros;
  double fan = 1;
  std::span<T> values{};
  std::span<T> gradient{};
};

}  // namespace nn
