// The optimizers of LibTorch: the values that each keeps for a parameter, and the update of servers that equals its
// step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>

#include <torch/optim.h>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster { inline namespace v0 { namespace torch { namespace detail {

/// The functions that are called for the values of a parameter's state: `number` for each integer, `tensor` for each
/// tensor.
struct value_visitor {
  std::function<void(std::int64_t&)> number;
  std::function<void(at::Tensor&)> tensor;
};

/// The description of a type of optimizer.
struct known_optimizer {
  std::string name;
  std::string options;  ///< the options beside the learning rate, which ranks compare
  std::function<std::unique_ptr<::torch::optim::OptimizerParamState>()> make_state;
  /// Visits the values in a fixed order.
  void (*visit)(::torch::optim::OptimizerParamState& state, const value_visitor& visitor);
  /// Returns the update of servers (`ps::make_update`). Throws configuration_error where servers have none.
  std::function<std::string()> server_update;
};

inline std::string option_text(const char* name, double value) {
  return std::string(", ") + name + " " + number_text(value);
}
inline std::string decay_text(double decay) { return decay == 0 ? "" : ",decay=" + number_text(decay); }

[[noreturn]] inline void refuse_on_servers(const std::string& optimizer, const std::string& option) {
  throw configuration_error("servers cannot apply " + optimizer + " (" + option +
                            "); use the default, or another --mode");
}
inline void require_default(const std::string& optimizer, const char* option, double value, double usual) {
  if (value != usual)
    refuse_on_servers(optimizer,
                      std::string("servers have ") + option + " " + number_text(usual) + ", not " + number_text(value));
}

[[nodiscard]] inline known_optimizer known(const ::torch::optim::SGDOptions& o) {
  using state = ::torch::optim::SGDParamState;
  return {"torch::optim::SGD",
          "momentum " + number_text(o.momentum()) + option_text("dampening", o.dampening()) +
              option_text("weight decay", o.weight_decay()) + (o.nesterov() ? ", nesterov" : ""),
          [] { return std::make_unique<state>(); },
          [](::torch::optim::OptimizerParamState& s, const value_visitor& v) {
            v.tensor(static_cast<state&>(s).momentum_buffer());
          },
          [o] {
            require_default("SGD", "dampening", o.dampening(), 0);
            const std::string momentum = number_text(o.momentum());
            return (o.momentum() == 0 ? "sgd:1" : (o.nesterov() ? "nesterov:1," : "momentum:1,") + momentum) +
                   decay_text(o.weight_decay());
          }};
}

// Describes Adam and AdamW, whose options and states have the same members.
template <class State, class Options>
[[nodiscard]] known_optimizer known_adam(const std::string& name, const std::string& update, const Options& o) {
  const auto [beta1, beta2] = o.betas();
  return {"torch::optim::" + name,
          "betas " + number_text(beta1) + " " + number_text(beta2) + option_text("eps", o.eps()) +
              option_text("weight decay", o.weight_decay()) + (o.amsgrad() ? ", amsgrad" : ""),
          [] { return std::make_unique<State>(); },
          [](::torch::optim::OptimizerParamState& s, const value_visitor& v) {
            auto& values = static_cast<State&>(s);
            v.number(values.step());
            v.tensor(values.exp_avg());
            v.tensor(values.exp_avg_sq());
            v.tensor(values.max_exp_avg_sq());
          },
          [o, name, update, first = beta1, second = beta2] {
            require_default(name, "a first beta of", first, 0.9);
            require_default(name, "a second beta of", second, 0.999);
            require_default(name, "an eps of", o.eps(), 1e-8);
            if (o.amsgrad()) refuse_on_servers(name, "servers have no amsgrad");
            return update + ":1" + decay_text(o.weight_decay());
          }};
}
[[nodiscard]] inline known_optimizer known(const ::torch::optim::AdamOptions& o) {
  return known_adam<::torch::optim::AdamParamState>("Adam", "adam", o);
}
[[nodiscard]] inline known_optimizer known(const ::torch::optim::AdamWOptions& o) {
  return known_adam<::torch::optim::AdamWParamState>("AdamW", "adamw", o);
}

[[nodiscard]] inline known_optimizer known(const ::torch::optim::RMSpropOptions& o) {
  using state = ::torch::optim::RMSpropParamState;
  return {"torch::optim::RMSprop",
          "alpha " + number_text(o.alpha()) + option_text("eps", o.eps()) +
              option_text("weight decay", o.weight_decay()) + option_text("momentum", o.momentum()) +
              (o.centered() ? ", centered" : ""),
          [] { return std::make_unique<state>(); },
          [](::torch::optim::OptimizerParamState& s, const value_visitor& v) {
            auto& values = static_cast<state&>(s);
            v.number(values.step());
            v.tensor(values.square_avg());
            v.tensor(values.momentum_buffer());
            v.tensor(values.grad_avg());
          },
          []() -> std::string { refuse_on_servers("RMSprop", "servers have no update of this kind"); }};
}

[[nodiscard]] inline known_optimizer known(const ::torch::optim::AdagradOptions& o) {
  using state = ::torch::optim::AdagradParamState;
  return {"torch::optim::Adagrad",
          "lr decay " + number_text(o.lr_decay()) + option_text("eps", o.eps()) +
              option_text("weight decay", o.weight_decay()) +
              option_text("initial value", o.initial_accumulator_value()),
          [] { return std::make_unique<state>(); },
          [](::torch::optim::OptimizerParamState& s, const value_visitor& v) {
            auto& values = static_cast<state&>(s);
            v.number(values.step());
            v.tensor(values.sum());
          },
          [o] {
            require_default("Adagrad", "an lr decay of", o.lr_decay(), 0);
            require_default("Adagrad", "an eps of", o.eps(), 1e-10);
            require_default("Adagrad", "an initial value of", o.initial_accumulator_value(), 0);
            return "adagrad:1" + decay_text(o.weight_decay());
          }};
}

/// Returns the description of an optimizer by the options of its first group. Throws configuration_error for LBFGS and
/// for optimizers that LibTorch does not have.
[[nodiscard]] inline known_optimizer known(const ::torch::optim::Optimizer& optimizer) {
  const auto& options = optimizer.param_groups().front().options();
  if (const auto* const sgd = dynamic_cast<const ::torch::optim::SGDOptions*>(&options)) return known(*sgd);
  if (const auto* const adam = dynamic_cast<const ::torch::optim::AdamOptions*>(&options)) return known(*adam);
  if (const auto* const adamw = dynamic_cast<const ::torch::optim::AdamWOptions*>(&options)) return known(*adamw);
  if (const auto* const rmsprop = dynamic_cast<const ::torch::optim::RMSpropOptions*>(&options)) return known(*rmsprop);
  if (const auto* const adagrad = dynamic_cast<const ::torch::optim::AdagradOptions*>(&options)) return known(*adagrad);
  if (dynamic_cast<const ::torch::optim::LBFGSOptions*>(&options) != nullptr) {
    throw configuration_error(
        "torch::optim::LBFGS cannot be used (its step computes the loss several times, and the step of a training has "
        "one backward pass); use SGD, Adam, AdamW, RMSprop or Adagrad");
  }
  throw configuration_error(
      "the state of this optimizer is not known (it is none of SGD, Adam, AdamW, RMSprop and Adagrad); give its state "
      "to "
      "the training as an owner of state (muster::restored_values)");
}

}}}}  // namespace muster::v0::torch::detail
