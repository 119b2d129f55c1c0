// The state of an optimizer of LibTorch, as a part of a training.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim.h>

#include <muster/core/error.hpp>
#include <muster/elastic/state.hpp>
#include <muster/torch/detail/known_optimizers.hpp>
#include <muster/torch/detail/parallel_module.hpp>
#include <muster/train/optimizers/optimizer.hpp>

namespace muster { inline namespace v0 { namespace torch {

namespace detail {

/// Writes the values that an optimizer keeps, and reads them again: for each parameter, in the order of its groups,
/// whether there are values, then numbers, and tensors in the layout of the parameter.
class optimizer_values {
  using state_map = std::remove_cvref_t<decltype(std::declval<::torch::optim::Optimizer&>().state())>;

  // LibTorch 1 has the address as a text.
  [[nodiscard]] static auto key_of(const at::Tensor& parameter) {
    if constexpr (std::is_same_v<state_map::key_type, std::string>) {
      std::ostringstream address;
      address << parameter.unsafeGetTensorImpl();
      return address.str();
    } else {
      return static_cast<void*>(parameter.unsafeGetTensorImpl());
    }
  }

 public:
  explicit optimizer_values(::torch::optim::Optimizer& optimizer) : optimizer_(&optimizer), known_(known(optimizer)) {
    for (auto& group : optimizer.param_groups())
      parameters_.insert(parameters_.end(), group.params().begin(), group.params().end());
  }

  [[nodiscard]] ::torch::optim::Optimizer& optimizer() const noexcept { return *optimizer_; }
  [[nodiscard]] const known_optimizer& kind() const noexcept { return known_; }
  [[nodiscard]] const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }

  void save(std::vector<std::byte>& bytes) const {
    const at::NoGradGuard no_gradients;
    bytes.clear();
    for (const auto& parameter : parameters_) {
      const auto found = optimizer_->state().find(key_of(parameter));
      const bool has = found != optimizer_->state().end();
      append_number(bytes, has ? 1 : 0);
      if (!has) continue;
      known_.visit(*found->second, {[&](std::int64_t& value) { append_number(bytes, value); },
                                    [&](at::Tensor& tensor) { append_tensor(bytes, parameter, tensor); }});
    }
  }
  /// Throws configuration_error for bytes of another model or optimizer, and then changes nothing.
  void load(std::span<const std::byte> bytes) {
    const at::NoGradGuard no_gradients;
    std::vector<std::unique_ptr<::torch::optim::OptimizerParamState>> values;
    reader from{bytes};
    for (const auto& parameter : parameters_) {
      auto& next = values.emplace_back();
      if (from.number() == 0) continue;
      next = known_.make_state();
      known_.visit(*next, {[&](std::int64_t& value) { value = from.number(); },
                           [&](at::Tensor& tensor) { tensor = from.tensor(parameter); }});
    }
    if (!from.bytes.empty()) refuse();
    for (std::size_t k = 0; k < parameters_.size(); ++k) {
      if (values[k])
        optimizer_->state()[key_of(parameters_[k])] = std::move(values[k]);
      else
        optimizer_->state().erase(key_of(parameters_[k]));
    }
  }

 private:
  [[noreturn]] static void refuse() {
    throw configuration_error(
        "the saved state of an optimizer does not fit (it belongs to another model or optimizer); use those that saved "
        "it");
  }
  // Returns a tensor over `memory` with the sizes and strides of the parameter.
  [[nodiscard]] static at::Tensor laid_out_as(const at::Tensor& parameter, void* memory) {
    return at::from_blob(memory, parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false));
  }
  static constexpr std::size_t alignment = 16;
  [[nodiscard]] static std::size_t padded_bytes(const at::Tensor& parameter) {
    return (bytes_of(parameter) + alignment - 1) / alignment * alignment;
  }

  static void append_number(std::vector<std::byte>& bytes, std::int64_t number) {
    const auto at = bytes.size();
    bytes.resize(at + alignment);  // every tensor begins at a multiple
    std::memcpy(bytes.data() + at, &number, sizeof number);
  }
  // Appends whether the tensor is defined, and then the tensor in the layout of its parameter.
  static void append_tensor(std::vector<std::byte>& bytes, const at::Tensor& parameter, const at::Tensor& tensor) {
    append_number(bytes, tensor.defined() ? 1 : 0);
    if (!tensor.defined()) return;
    const auto at = bytes.size();
    bytes.resize(at + padded_bytes(parameter));
    (void)laid_out_as(parameter, bytes.data() + at).copy_(tensor);
  }

  // Reads the form that append_number and append_tensor write.
  struct reader {
    std::span<const std::byte> bytes;

    std::span<const std::byte> take(std::size_t size) {
      if (size > bytes.size()) refuse();
      const auto taken = bytes.first(size);
      bytes = bytes.subspan(size);
      return taken;
    }
    std::int64_t number() {
      std::int64_t result = 0;
      std::memcpy(&result, take(alignment).data(), sizeof result);
      return result;
    }
    at::Tensor tensor(const at::Tensor& parameter) {
      if (number() == 0) return {};
      auto* const memory = const_cast<std::byte*>(take(padded_bytes(parameter)).data());
      return laid_out_as(parameter, memory).clone();
    }
  };

  ::torch::optim::Optimizer* optimizer_;
  known_optimizer known_;
  std::vector<at::Tensor> parameters_;
};

/// The shared part of an optimizer_state.
struct optimizer_link {
  explicit optimizer_link(::torch::optim::Optimizer& optimizer) : values(optimizer) {}
  optimizer_values values;
  muster::arena* arena = nullptr;
  bool waits = false;     // a step waits for the commit
  bool defers = false;    // steps run when the training's step commits
  bool has_copy = false;  // `before` has the values as of the begin of the training's step
  std::vector<std::byte> before{};
};

}  // namespace detail

/// The state of an optimizer: its momentum, means and counts, for elastic sessions, checkpoints and the comparison of
/// ranks, and an `optimizer` of muster. Made by `state`. A handle: copies refer to the same optimizer, which must
/// outlive them.
class optimizer_state {
 public:
  /// See `state`.
  explicit optimizer_state(::torch::optim::Optimizer& optimizer)
      : link_(std::make_shared<detail::optimizer_link>(optimizer)) {
    for (const auto& parameter : link_->values.parameters()) {
      muster::arena& found = arena_of(parameter);
      if (link_->arena != nullptr && link_->arena != &found) {
        throw configuration_error(
            "an optimizer has parameters of two data_parallel models (their gradients are complete at different "
            "times); make an optimizer for each");
      }
      link_->arena = &found;
    }
  }
  optimizer_state(const optimizer_state&) = default;  // no moves: a copy in a training leaves this one usable
  optimizer_state& operator=(const optimizer_state&) = default;

  /// Returns the learning rate of the first group.
  [[nodiscard]] double learning_rate() const { return first_options().get_lr(); }
  /// Performs the optimizer's step, when the training's step commits. Sets the learning rate of the first group, and
  /// the rates of other groups in proportion. Throws configuration_error when the rate is negative or not finite.
  void apply(double learning_rate) {
    if (!(learning_rate >= 0 && std::isfinite(learning_rate))) {
      throw configuration_error("an optimizer cannot step with a learning rate of " + std::to_string(learning_rate) +
                                " (it must be finite and not negative); check the schedule");
    }
    const double before = this->learning_rate();
    if (learning_rate != before) {
      for (auto& group : optimizer().param_groups()) {
        auto& options = group.options();
        options.set_lr(before > 0 ? options.get_lr() * (learning_rate / before) : learning_rate);
      }
      first_options().set_lr(learning_rate);
    }
    link_->waits = true;
    link_->arena->update([link = link_] {
      link->waits = false;  // runs within the step where ranks exchange weights
      (void)link->values.optimizer().step();
    });
    link_->defers = link_->waits;
  }
  /// Returns the update function with which the servers of a parameter server perform the same step. Throws
  /// configuration_error for RMSprop, for several groups, and for options that servers do not have.
  [[nodiscard]] std::string server_update() const {
    if (optimizer().param_groups().size() > 1) {
      throw configuration_error(
          "servers cannot apply an optimizer with several groups of parameters (a table has one update); use one "
          "group, "
          "or another --mode");
    }
    return link_->values.kind().server_update();
  }

  /// Describes the state to a session. With `step.update([&] { optimizer.step(); })` the values are copied before each
  /// step, and restored when it fails. With `step.update(state)` they change only when the step commits.
  void describe(state_parts& parts) {
    parts.add_property("the optimizer", link_->values.kind().name);
    parts.add_property("the options of the optimizer", link_->values.kind().options);
    parts.add(
        "optimizer of LibTorch", state_kind::replicated,
        [link = link_] {
          std::vector<std::byte> bytes;
          link->values.save(bytes);
          return bytes;
        },
        [link = link_](std::span<const std::byte> bytes) { link->values.load(bytes); });
    parts.hook([link = link_] { link->has_copy = false; },
               [link = link_] {
                 if (std::exchange(link->has_copy, false)) link->values.load(link->before);
               },
               [link = link_] {
                 link->has_copy = !link->defers;
                 if (link->has_copy) link->values.save(link->before);
               });
  }

 private:
  [[nodiscard]] ::torch::optim::Optimizer& optimizer() const noexcept { return link_->values.optimizer(); }
  [[nodiscard]] ::torch::optim::OptimizerOptions& first_options() const {
    return optimizer().param_groups().front().options();
  }
  [[nodiscard]] static muster::arena& arena_of(const at::Tensor& parameter) {
    for (auto* const module : detail::modules_of_thread()) {
      if (module->has(parameter)) return module->arena();
    }
    throw configuration_error(
        "an optimizer has a parameter that no data_parallel of this rank has (its gradient would be this rank's "
        "alone); "
        "make the model parallel before, and give the optimizer its module's parameters");
  }

  std::shared_ptr<detail::optimizer_link> link_;
};
static_assert(served_optimizer<optimizer_state>);

/// Returns the state of an optimizer of LibTorch, to be passed to a training:
///
///     torch::optim::Adam optimizer(net->parameters(), 0.001);
///     auto updater = muster::torch::state(optimizer);
///     muster::training training(context, model, updater, loader);
///     ... step.update(updater);   // or step.update(updater, schedule), or step.update([&] { optimizer.step(); })
///
/// Throws configuration_error for LBFGS, for an optimizer of the program, and for parameters that do not belong to one
/// data_parallel of this thread.
[[nodiscard]] inline optimizer_state state(::torch::optim::Optimizer& optimizer) { return optimizer_state(optimizer); }

}}}  // namespace muster::v0::torch
