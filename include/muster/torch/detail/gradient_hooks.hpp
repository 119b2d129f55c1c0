// Calls behind the accumulation of gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <muster/torch/detail/module_tensors.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// Calls `f(t)` each time a backward pass has accumulated the gradient of the t-th tensor, on the thread that
/// accumulates: for tensors on the host the thread that called `backward`. Exceptions of `f` end the backward pass,
/// which throws them. The accumulators of the tensors are kept, because autograd itself refers to them only weakly.
class gradient_hooks {
 public:
  gradient_hooks(const std::vector<named_tensor>& tensors, const std::function<void(std::size_t)>& f) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      auto accumulator = ::torch::autograd::impl::grad_accumulator(tensors[t].tensor);
      const auto key = accumulator->add_post_hook(std::make_unique<post_hook>(f, t));
      hooks_.push_back(installed_hook{std::move(accumulator), key});
    }
  }
  gradient_hooks(const gradient_hooks&) = delete;
  gradient_hooks& operator=(const gradient_hooks&) = delete;
  ~gradient_hooks() {
    for (const auto& hook : hooks_) (void)hook.accumulator->del_post_hook(hook.key);
  }

 private:
  struct post_hook final : ::torch::autograd::FunctionPostHook {
    post_hook(std::function<void(std::size_t)> function, std::size_t index) : f(std::move(function)), tensor(index) {}
    ::torch::autograd::variable_list operator()(const ::torch::autograd::variable_list& outputs,
                                                const ::torch::autograd::variable_list& /*inputs*/) override {
      f(tensor);
      return outputs;
    }
    std::function<void(std::size_t)> f;
    std::size_t tensor;
  };
  struct installed_hook {
    decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>())) accumulator;
    std::uintptr_t key;
  };

  std::vector<installed_hook> hooks_;
};

}}}}  // namespace muster::v0::torch::detail
