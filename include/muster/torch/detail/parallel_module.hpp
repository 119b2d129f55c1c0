// A module whose parameters and gradients are in an arena.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/engine.h>
#include <unistd.h>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/comm/context.hpp>
#include <muster/core/error.hpp>
#include <muster/core/log.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/elastic/state.hpp>
#include <muster/elastic/step.hpp>
#include <muster/torch/data_parallel_options.hpp>
#include <muster/torch/detail/bound_parameters.hpp>
#include <muster/torch/detail/generator_state.hpp>
#include <muster/torch/detail/gradient_hooks.hpp>
#include <muster/torch/detail/module_buffers.hpp>
#include <muster/torch/detail/module_comparison.hpp>
#include <muster/torch/detail/module_tensors.hpp>
#include <muster/torch/detail/sync_statistics.hpp>
#include <muster/torch/detail/trial_order.hpp>
#include <muster/torch/sync_batch_norm.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/sync/sync_mode.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

class parallel_module;

/// The modules of this thread, each a rank's. An optimizer's state finds the arena of its parameters here.
inline std::vector<parallel_module*>& modules_of_thread() {
  static thread_local std::vector<parallel_module*> modules;
  return modules;
}

/// The part of a data_parallel that does not depend on the type of the module.
class parallel_module {
 public:
  parallel_module(context& ctx, module_tensors tensors, const data_parallel_options& options)
      : context_(&ctx),
        options_(options),
        tensors_(sorted(std::move(tensors), options)),
        parameters_(ctx, tensors_.trained),
        buffers_(tensors_.buffers, options.buffers),
        shares_generator_(ctx.transport_name() == "threads") {
    limit_threads();
    for (auto& entry : tensors_.frozen) {
      if (!entry.tensor.is_non_overlapping_and_dense()) entry.tensor.set_data(entry.tensor.contiguous());
    }
    if (!ctx.elastic()) begin_together(ctx.world());  // an elastic session copies the state to ranks that join
    connect_norms();
    hooks_.emplace(tensors_.trained, [this](std::size_t tensor) { on_gradient(tensor); });
    modules_of_thread().push_back(this);
  }
  parallel_module(const parallel_module&) = delete;
  parallel_module& operator=(const parallel_module&) = delete;
  ~parallel_module() {
    std::erase(modules_of_thread(), this);
    ranks_->group = nullptr;
    hooks_.reset();
    own_pass_.reset();
  }

  /// Returns the arena with the parameters and their gradients.
  [[nodiscard]] muster::arena& arena() noexcept { return parameters_.arena(); }
  operator muster::arena&() noexcept { return parameters_.arena(); }
  [[nodiscard]] const data_parallel_options& options() const noexcept { return options_; }

  /// Computes the gradients of `loss`, this rank's loss over `batch`, and gives each to `pass` as soon as it is
  /// complete. A rank without samples computes nothing. Throws configuration_error for a loss that is not a single
  /// number, and for a parameter that was frozen when the model was made and requires a gradient now.
  void backward(backward_pass& pass, const minibatch& batch, const at::Tensor& loss,
                loss_reduction reduced_by = loss_reduction::mean) {
    require_frozen();
    clear_unwritten(pass);
    if (batch.global_size > 0) pass.divided_by(static_cast<double>(batch.global_size));
    if (!batch.samples.empty() || has_norms_) {  // norms over ranks are collective
      require_number(loss);
      const double weight = reduced_by == loss_reduction::sum ? 1.0 : static_cast<double>(batch.samples.size());
      const scoped_pass during(*this, pass);
      loss.backward(at::full_like(loss, weight / static_cast<double>(batch.global_size)));
    }
    bind_gradients();
  }

  /// Describes the state beside the arena: frozen parameters, buffers, the state of LibTorch's generator.
  void describe(state_parts& parts) {
    const auto lines = lines_of(tensors_);
    for (std::size_t k = 0; k < lines.size(); ++k)
      parts.add_property("tensor " + std::to_string(k) + " of the module", lines[k]);
    for (const auto& entry : tensors_.frozen) {
      if (entry.tensor.numel() > 0)
        parts.add("frozen parameter " + entry.name, bytes_in(entry.tensor), state_kind::replicated,
                  rollback_policy::keep_on_failure);
    }
    buffers_.describe(parts);
    if (!shares_generator_) describe_generator(parts);
    if (sync_mode_of(*context_).method == sync_mode::kind::parameter_server) return;  // workers do not step together
    if (has_norms_) {
      parts.before_step([this](step& current) { ranks_->group = &current.group(); });
      const auto leave = [this] { ranks_->group = context_->elastic() ? nullptr : &context_->world(); };
      parts.hook(leave, leave);
    }
    parts.before_step([this](step& current) {
      if (current.number() == 0) warn_about_generators(current.group(), shares_generator_, tensors_.has_dropout);
    });
  }

  /// Leaves gradients as they are, as long as the result exists: they stay at this rank, and add up there.
  class paused_exchange {
   public:
    explicit paused_exchange(parallel_module& owner) noexcept : owner_(&owner) { ++owner_->paused_; }
    paused_exchange(const paused_exchange&) = delete;
    paused_exchange& operator=(const paused_exchange&) = delete;
    ~paused_exchange() { --owner_->paused_; }

   private:
    parallel_module* owner_;
  };

  /// Returns true if this tensor is one of the parameters.
  [[nodiscard]] bool has(const at::Tensor& tensor) const noexcept {
    const auto is_same = [&](const auto& entry) { return entry.tensor.is_same(tensor); };
    return std::ranges::any_of(tensors_.trained, is_same) || std::ranges::any_of(tensors_.frozen, is_same);
  }

 private:
  // Hands gradients to a pass as long as it exists.
  struct scoped_pass {
    scoped_pass(parallel_module& owner, backward_pass& pass) noexcept : module(owner) { module.pass_ = &pass; }
    scoped_pass(const scoped_pass&) = delete;
    scoped_pass& operator=(const scoped_pass&) = delete;
    ~scoped_pass() { module.pass_ = nullptr; }
    parallel_module& module;
  };

  [[nodiscard]] static module_tensors sorted(module_tensors tensors, const data_parallel_options& options) {
    if (options.trial) sort_by_trial(tensors, options.trial);
    return tensors;
  }
  [[nodiscard]] static std::span<std::byte> bytes_in(const at::Tensor& tensor) {
    return {static_cast<std::byte*>(tensor.data_ptr()), bytes_of(tensor)};
  }

  // Gives every rank the parameters and buffers of rank 0. Throws where the modules of the ranks differ.
  void begin_together(group& world) {
    require_equal_modules(world, tensors_);
    if (world.size() == 1) return;
    broadcast(world, arena().parameters(), 0);
    for (auto& entry : tensors_.frozen) {
      if (entry.tensor.numel() > 0) broadcast(world, bytes_in(entry.tensor), 0);
    }
    buffers_.broadcast_all(world);
  }

  // Names the ranks to the batch norms over ranks.
  void connect_norms() {
    for (const auto& module : tensors_.modules) {
      auto* const norm = dynamic_cast<sync_batch_norm_impl*>(module.get());
      if (norm == nullptr) continue;
      has_norms_ = true;
      norm->connect(ranks_);
    }
    if (!has_norms_) return;
    if (sync_mode_of(*context_).method == sync_mode::kind::parameter_server) {
      throw configuration_error(
          "mode ps cannot train a sync_batch_norm (workers do not step together, so they have no common batch); use "
          "BatchNorm, or another --mode");
    }
    if (!context_->elastic()) ranks_->group = &context_->world();
  }

  // Sets the number of threads of LibTorch: the option, or this rank's share of the processors.
  void limit_threads() const {
    if (options_.threads > 0) return at::set_num_threads(options_.threads);
    if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
    const int here = shares_generator_ ? context_->ranks() : context_->launcher().local_size;
    const auto processors = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    const int share = std::max(1, processors / std::max(1, here));
    if (at::get_num_threads() > share) at::set_num_threads(share);
  }

  // Throws configuration_error for a loss that is not a single number.
  static void require_number(const at::Tensor& loss) {
    if (loss.defined() && loss.numel() == 1) return;
    throw configuration_error("the gradients of a loss with " +
                              (loss.defined() ? std::to_string(loss.numel()) + " elements" : std::string("no value")) +
                              " cannot be computed (it must be a single number); reduce it over the samples, by "
                              "mean() or sum()");
  }
  // Throws configuration_error if a parameter that was frozen at construction requires a gradient now.
  void require_frozen() const {
    for (const auto& entry : tensors_.frozen) {
      if (!entry.tensor.requires_grad()) continue;
      throw configuration_error("parameter '" + entry.name +
                                "' requires a gradient now (it did not when the model was made parallel, so no rank "
                                "would send it); make the data_parallel after the last requires_grad_()");
    }
  }

  // Drops the gradients of earlier steps, so that autograd sets new gradients instead of adding to them.
  void clear_unwritten(const backward_pass& pass) {
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      if (!pass.adds(t)) parameters_.drop(t);
    }
  }
  // Makes the arena's gradients the gradients of the parameters.
  void bind_gradients() {
    for (std::size_t t = 0; t < parameters_.size(); ++t) parameters_.bind(t);
  }

  // Called by autograd when the gradient of a parameter is complete.
  void on_gradient(std::size_t tensor) {
    if (paused_ > 0) return;
    if (pass_ == nullptr) begin_own_pass();
    parameters_.take(tensor);
    pass_->ready(tensor);
  }

  // Begins a pass for a `loss.backward()` of the program without a training. Autograd ends the pass with the backward.
  void begin_own_pass() {
    if (context_->elastic()) {
      throw configuration_error(
          "gradients were computed outside of step.backward (in an elastic job no other ranks are known there); call "
          "step.backward(model, loss), or hold no_sync() for gradients that stay at this rank");
    }
    require_frozen();
    if (!sync_) {
      if (arena().is_shared()) {
        throw configuration_error(
            "gradients were computed outside of step.backward (a training exchanges the gradients of this model); call "
            "step.backward(model, loss), or hold no_sync() for gradients that stay at this rank");
      }
      sync_.emplace(arena(), options_.sync);
      warn_about_generators(context_->world(), shares_generator_, tensors_.has_dropout);
    }
    own_pass_.reset(new backward_pass(sync_->begin(context_->world())));
    own_pass_->add_samples(1);
    pass_ = own_pass_.get();
    // Autograd destroys the callback with the backward, also if the backward throws.
    const std::shared_ptr<parallel_module> until_end(this, [](parallel_module* owner) { owner->drop_own_pass(); });
    ::torch::autograd::Engine::get_default_engine().queue_callback([until_end] { until_end->end_own_pass(); });
  }
  // Ends the pass after an exception of the backward.
  void drop_own_pass() noexcept {
    if (!own_pass_) return;
    pass_ = nullptr;
    own_pass_.reset();
  }
  // Waits until the gradients are summed over the ranks, and ends the pass.
  void end_own_pass() {
    const auto ended = std::move(own_pass_);
    pass_ = nullptr;
    ended->end_pass();
    ended->wait();
    bind_gradients();
    buffers_.exchange(context_->world());
    sync_->commit();
  }

  context* context_;
  data_parallel_options options_;
  module_tensors tensors_;
  bound_parameters parameters_;
  module_buffers buffers_;
  const std::shared_ptr<current_ranks> ranks_ = std::make_shared<current_ranks>();  // for batch norms
  bool has_norms_ = false;
  bool shares_generator_;              // ranks are threads of one process
  std::optional<gradient_sync> sync_;  // of backward passes without a training
  std::unique_ptr<backward_pass> own_pass_;
  backward_pass* pass_ = nullptr;
  int paused_ = 0;
  std::optional<gradient_hooks> hooks_;
};

}  // namespace detail
}}}  // namespace muster::v0::torch
