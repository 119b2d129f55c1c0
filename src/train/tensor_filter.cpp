#include <muster/train/tensor_filter.hpp>

#include <algorithm>

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
  std::vector<tensor_run> runs;
  for (const auto& tensor : tensors_of(of, filter)) {
    if (runs.empty() || runs.back().chosen != tensor.chosen) {
      if (!runs.empty()) runs.back().count = tensor.first - runs.back().first;
      runs.push_back(tensor);
    }
  }
  if (!runs.empty()) runs.back().count = of.parameters().size() - runs.back().first;
  return runs;
}

}  // namespace muster::inline v0::detail
