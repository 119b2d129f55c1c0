// Which tensors of an arena something is for: weight decay, the rates of LARS.
#pragma once

#include <cstddef>
#include <functional>

#include <muster/train/arena.hpp>

namespace muster::inline v0 {

/// Says of each tensor whether it is one of those; empty means all. The same at every rank.
using tensor_filter = std::function<bool(const tensor_shape&)>;

/// Those with two extents or more: the weights of layers, and neither biases nor the scales and shifts of batch
/// normalisation, which are usually left out of weight decay (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
[[nodiscard]] inline bool is_matrix(const tensor_shape& shape) { return shape.extents.size() >= 2; }

namespace detail {

/// A part of an arena's arrays of which all tensors are chosen, or none; the gaps between them included.
struct tensor_run {
  std::size_t first = 0;
  std::size_t count = 0;
  bool chosen = true;
};

}  // namespace detail
}  // namespace muster::inline v0
