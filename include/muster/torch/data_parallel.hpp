// Data parallelism for a module of LibTorch.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/script.h>

#include <muster/comm/context.hpp>
#include <muster/core/error.hpp>
#include <muster/torch/detail/parallel_module.hpp>

namespace muster { inline namespace v0 { namespace torch {

namespace detail {

// A module of the C++ frontend, or of TorchScript.
template <class Module>
concept libtorch_module = std::derived_from<Module, ::torch::nn::Module> || std::same_as<Module, ::torch::jit::Module>;

template <class Module>
Module& required(const std::shared_ptr<Module>& module) {
  if (module) return *module;
  throw configuration_error("a module cannot be made parallel (the pointer to it is null); make the module first");
}

}  // namespace detail

/// A module whose gradients are the mean over all ranks: the DistributedDataParallel of LibTorch's C++ frontend.
///
///     auto net = std::make_shared<Net>();
///     muster::torch::data_parallel model(context, net);
///     torch::optim::SGD optimizer(net->parameters(), 0.01);
///     auto updater = muster::torch::state(optimizer);
///     muster::training training(context, model, updater, loader);
///     training.run({.epochs = 10, .checkpoint = "ckpt"}, [&](muster::training_step& step) {
///       auto [input, target] = muster::torch::tensors(step.next(loader));
///       step.backward(model, torch::nll_loss(model->forward(input), target));  // buckets leave during backward
///       step.update(updater);                                                  // at every rank or at none
///     });
///
/// The constructor moves the parameters into an arena, in memory that the ranks of this host can read, and gives every
/// rank the parameters and buffers of rank 0. It is collective, except in an elastic job, whose sessions compare and
/// copy. It throws mismatch_error at every rank if the modules differ, with the first tensor that differs, and
/// configuration_error for tensors that are not on the host, not dense, or not of floating point.
///
/// Gradients are views of the arena. As soon as the last gradient of a bucket is accumulated, its reduction starts,
/// while the backward pass goes on. A parameter that the loss does not reach counts as a gradient of zeros. Without a
/// `training` a plain `loss.backward()` also ends with the mean over the ranks of the context, each rank with the same
/// weight, and `no_sync` keeps gradients at the rank.
///
/// The module may be used as before, with optimizers that were made before or after. It must outlive this object if it
/// was passed by reference. The destructor gives the parameters memory of their own again, and leaves no gradients.
/// Used by the thread that is the rank.
template <class Module>
class data_parallel : public detail::parallel_module {
 public:
  /// Shares a module with the caller.
  explicit data_parallel(context& ctx, std::shared_ptr<Module> module, const data_parallel_options& options = {})
      : parallel_module(ctx, detail::tensors_of(detail::required(module)), options), module_(std::move(module)) {}
  /// Refers to a module of the caller.
  explicit data_parallel(context& ctx, Module& module,
                         const data_parallel_options& options = {}) requires detail::libtorch_module<Module>
      : data_parallel(ctx, std::shared_ptr<Module>(std::shared_ptr<void>(), &module), options) {}
  /// Shares a module of TorchScript, such as the result of `torch::jit::load`.
  explicit data_parallel(context& ctx, Module&& module,
                         const data_parallel_options& options = {}) requires std::same_as<Module, ::torch::jit::Module>
      : data_parallel(ctx, std::make_shared<Module>(std::move(module)), options) {}
  /// Shares the module of a holder, such as `torch::nn::Sequential`.
  explicit data_parallel(context& ctx, const ::torch::nn::ModuleHolder<Module>& holder,
                         const data_parallel_options& options = {})
      : data_parallel(ctx, holder.ptr(), options) {}

  /// Returns the module; so do the operators.
  [[nodiscard]] Module& module() const noexcept { return *module_; }
  Module* operator->() const noexcept { return module_.get(); }
  Module& operator*() const noexcept { return *module_; }

  /// Keeps the gradients of backward passes at this rank, where they add up, as long as the result exists. For programs
  /// without a `training`; with one, pass its micro-batches to `step.backward`.
  [[nodiscard]] paused_exchange no_sync() noexcept { return paused_exchange(*this); }

 private:
  std::shared_ptr<Module> module_;
};

/// Deduce the type of the module from the pointer or holder.
template <class Module>
data_parallel(context&, std::shared_ptr<Module>) -> data_parallel<Module>;
template <class Module>
data_parallel(context&, std::shared_ptr<Module>, const data_parallel_options&) -> data_parallel<Module>;
template <class Module>
data_parallel(context&, const ::torch::nn::ModuleHolder<Module>&) -> data_parallel<Module>;
template <class Module>
data_parallel(context&, const ::torch::nn::ModuleHolder<Module>&, const data_parallel_options&)
    -> data_parallel<Module>;

}}}  // namespace muster::v0::torch
