#include <muster/train/tensor_filter.hpp>

#include <algorithm>

#include "layout.hpp"

namespace muster::inline v0::detail {

std::vector<tensor_run> tensors_of(arena& of, const tensor_filter& filter) {
  std::vector<tensor_run> tensors;
  const auto& shapes = of.shapes();
  for (std::size_t tensor = 0; tensor < shapes.size(); ++tensor) {
    const auto values = of.parameter(tensor);
    if (values.empty()) continue;
    const auto first = static_cast<std::size_t>(values.data() - of.parameters().data());
    tensors.push_back({first, values.size(), !filter || filter(shapes[tensor])});
  }
  std::ranges::sort(tensors, {}, &tensor_run::first);
  return tensors;
}

std::vector<tensor_run> runs_of(arena& of, const tensor_filter& filter) {
  std::vector<block> extents;
  for (std::size_t tensor = 0; tensor < of.shapes().size(); ++tensor) extents.push_back(of.extent(tensor));
  return runs_of(of.shapes(), extents, filter);
}

}  // namespace muster::inline v0::detail
