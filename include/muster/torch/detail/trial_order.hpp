// The order in which a backward pass completes gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <muster/torch/detail/generator_state.hpp>
#include <muster/torch/detail/gradient_hooks.hpp>
#include <muster/torch/detail/module_tensors.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// Sorts the trained parameters so that the backward pass of `trial()` completes the last one first, as an arena stores
/// them. Parameters that the trial does not reach are the first. Buffers, gradients and the generator are afterwards as
/// before.
inline void sort_by_trial(module_tensors& tensors, const std::function<at::Tensor()>& trial) {
  std::vector<std::size_t> completed;
  std::vector<at::Tensor> buffers, gradients;
  for (const auto& entry : tensors.buffers) buffers.push_back(entry.tensor.clone());
  for (auto& entry : tensors.trained) gradients.push_back(std::exchange(entry.tensor.mutable_grad(), {}));
  const at::Tensor numbers = state_of_generator();
  {
    const gradient_hooks hooks(tensors.trained, [&](std::size_t tensor) { completed.push_back(tensor); });
    trial().backward();
  }
  const at::NoGradGuard no_gradients;
  set_generator(numbers);
  for (std::size_t k = 0; k < buffers.size(); ++k) (void)tensors.buffers[k].tensor.copy_(buffers[k]);
  for (std::size_t k = 0; k < gradients.size(); ++k) tensors.trained[k].tensor.mutable_grad() = gradients[k];
  std::vector<named_tensor> sorted;
  for (std::size_t k = 0; k < tensors.trained.size(); ++k) {
    if (std::ranges::find(completed, k) == completed.end()) sorted.push_back(tensors.trained[k]);
  }
  for (auto last = completed.rbegin(); last != completed.rend(); ++last) sorted.push_back(tensors.trained[*last]);
  tensors.trained = std::move(sorted);
}

}}}}  // namespace muster::v0::torch::detail
