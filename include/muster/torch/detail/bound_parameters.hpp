// Parameters of a module in the memory of an arena.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include <muster/comm/context.hpp>
#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/torch/detail/module_tensors.hpp>
#include <muster/train/arena.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// Parameters that have been moved into an arena, and views of their gradients there. Optimizers and other holders of
/// the tensors see the new memory. The destructor gives the parameters memory of their own, without gradients.
class bound_parameters {
 public:
  /// Throws configuration_error for elements that gradients cannot have.
  bound_parameters(context& ctx, std::vector<named_tensor> parameters)
      : parameters_(std::move(parameters)), arena_(ctx, shapes_of(parameters_)) {
    const at::NoGradGuard no_gradients;
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      at::Tensor& parameter = parameters_[t].tensor;
      if (!parameter.is_non_overlapping_and_dense()) parameter.set_data(parameter.contiguous());
      const auto options = parameter.options().requires_grad(false);
      const auto view = [&](std::span<float> memory) {
        return at::from_blob(memory.data(), parameter.sizes(), parameter.strides(), options);
      };
      const at::Tensor home = view(arena_.parameter(t));
      (void)home.copy_(parameter);
      parameter.set_data(home);
      gradients_.push_back(view(arena_.gradient(t)));
      drop(t);
    }
  }
  bound_parameters(const bound_parameters&) = delete;
  bound_parameters& operator=(const bound_parameters&) = delete;
  ~bound_parameters() {
    try {
      const at::NoGradGuard no_gradients;
      for (std::size_t t = 0; t < parameters_.size(); ++t) {
        drop(t);
        at::Tensor& parameter = parameters_[t].tensor;
        const auto options = parameter.options().requires_grad(false);
        parameter.set_data(at::empty_strided(parameter.sizes(), parameter.strides(), options).copy_(parameter));
      }
    } catch (const std::exception& failed) {
      log(log_level::error, std::string("parameters of a module could not be copied out of its arena (") +
                                failed.what() + "); do not use the module");
    }
  }

  [[nodiscard]] muster::arena& arena() noexcept { return arena_; }
  [[nodiscard]] std::size_t size() const noexcept { return parameters_.size(); }

  /// Drops the gradient of the t-th parameter, so that autograd sets the next one instead of adding to it.
  void drop(std::size_t t) { parameters_[t].tensor.mutable_grad() = at::Tensor(); }
  /// Makes the place in the arena the gradient, whatever it holds.
  void bind(std::size_t t) {
    if (parameters_[t].tensor.requires_grad()) parameters_[t].tensor.mutable_grad() = gradients_[t];
  }
  /// Copies the gradient that autograd has accumulated to its place, unless it is there. Throws configuration_error for
  /// a sparse gradient.
  void take(std::size_t t) {
    at::Tensor& gradient = parameters_[t].tensor.mutable_grad();
    if (gradient.layout() != at::kStrided) {
      throw configuration_error("the gradient of '" + parameters_[t].name +
                                "' is sparse (ranks sum dense gradients); make its layer with sparse(false)");
    }
    if (gradient.data_ptr() == gradients_[t].data_ptr()) return;
    const at::NoGradGuard no_gradients;
    (void)gradients_[t].copy_(gradient);
    gradient = gradients_[t];
  }

 private:
  [[nodiscard]] static std::vector<tensor_shape> shapes_of(const std::vector<named_tensor>& tensors) {
    std::vector<tensor_shape> shapes;
    for (const auto& entry : tensors) {
      const dtype type = dtype_of(entry.tensor);
      if (type != dtype::float32 && type != dtype::float64 && type != dtype::float16 && type != dtype::bfloat16) {
        throw configuration_error(
            "parameter '" + entry.name + "' has elements of " + std::string(at::toString(entry.tensor.scalar_type())) +
            " (gradients are summed as float32, float64, float16 or bfloat16); convert the module "
            "by to()");
      }
      shapes.push_back({entry.name, {entry.tensor.sizes().begin(), entry.tensor.sizes().end()}, type});
    }
    return shapes;
  }

  std::vector<named_tensor> parameters_;
  muster::arena arena_;
  std::vector<at::Tensor> gradients_;  // views of the arena's gradients
};

}}}}  // namespace muster::v0::torch::detail
