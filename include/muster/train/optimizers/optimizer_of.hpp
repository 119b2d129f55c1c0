// Definitions of optimizers: the names of its arrays, the ranges of its numbers, its step.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/train/optimizers/optimizer.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {

namespace detail {

/// Throws configuration_error unless the rate is a finite number that is not negative.
void require_learning_rate(double learning_rate);
/// Throws configuration_error when a number is out of its range.
void require_valid(const sgd_step<float>& step);
void require_valid(const adam_step<float>& step);
void require_valid(const adagrad_step<float>& step);
void require_valid(const lars_step<float>& step);

/// Returns the constants for the `count`-th step of a run of tensors. `chosen`: the filter selects these tensors.
template <class Step>
Step step_of(Step result, double rate, bool chosen, std::uint64_t count) {
  result.learning_rate = static_cast<decltype(result.learning_rate)>(rate);
  if (!chosen) result.decay = 0;
  if constexpr (requires { result.trust; }) result.trust = chosen ? result.trust : 0;
  if constexpr (requires { result.count; }) result.count = count;
  return result;
}

/// Returns the names of a step's arrays in checkpoints, in the step's order.
inline std::vector<std::string> state_names(const sgd_step<float>&) { return {"velocity"}; }
inline std::vector<std::string> state_names(const adam_step<float>&) { return {"mean", "square"}; }
inline std::vector<std::string> state_names(const adagrad_step<float>&) { return {"squares"}; }
inline std::vector<std::string> state_names(const lars_step<float>&) { return {"velocity"}; }

/// Returns the constants of a step that must be equal at all ranks, by name.
inline std::vector<compared_property> properties_to_compare(const sgd_step<float>& step) {
  return {{"the optimizer", "sgd"},
          {"the momentum of the optimizer", number_text(step.momentum)},
          {"Nesterov's momentum of the optimizer", step.nesterov ? "on" : "off"}};
}
inline std::vector<compared_property> properties_to_compare(const adam_step<float>& step) {
  return {{"the optimizer", step.decoupled ? "adamw" : "adam"},
          {"beta1 of the optimizer", number_text(step.beta1)},
          {"beta2 of the optimizer", number_text(step.beta2)},
          {"epsilon of the optimizer", number_text(step.epsilon)}};
}
inline std::vector<compared_property> properties_to_compare(const adagrad_step<float>& step) {
  return {{"the optimizer", "adagrad"}, {"epsilon of the optimizer", number_text(step.epsilon)}};
}
inline std::vector<compared_property> properties_to_compare(const lars_step<float>& step) {
  return {{"the optimizer", "lars"},
          {"the momentum of the optimizer", number_text(step.momentum)},
          {"trust of the optimizer", number_text(step.trust)}};
}

/// Returns the update function with which servers perform the same step. `all_decay`: all tensors have weight decay.
/// Throws configuration_error where servers have no such function.
[[nodiscard]] std::string server_update(const sgd_step<float>& step, bool all_decay);
[[nodiscard]] std::string server_update(const adam_step<float>& step, bool all_decay);
[[nodiscard]] std::string server_update(const adagrad_step<float>& step, bool all_decay);
[[nodiscard]] std::string server_update(const lars_step<float>& step, bool all_decay);

}  // namespace detail

template <class Step, class Arena>
optimizer_of<Step, Arena>::optimizer_of(Arena& values, const Step& constants, tensor_filter decay_of)
    : arena_(&values), constants_(constants) {
  detail::require_valid(constants);
  values.require_floats("an optimizer of muster cannot be used");
  if (constants.decay == 0 && !has_a_rate_for_each_tensor) decay_of = nullptr;
  for (std::size_t tensor = values.shapes().size(); tensor-- > 0;) {  // in the order of their places
    const block extent = values.places()[tensor];
    if (extent.count == 0) continue;
    const bool chosen = !decay_of || decay_of(values.shapes()[tensor]);
    if (has_a_rate_for_each_tensor)
      runs_.push_back({extent.first, values.shapes()[tensor].size(), chosen});
    else if (runs_.empty() || runs_.back().chosen != chosen)
      runs_.push_back({extent.first, extent.count, chosen});
    else
      runs_.back().count += extent.count;
  }
  const auto names = detail::state_names(constants);
  for (std::size_t k = 0; k < constants.states(); ++k) states_[k] = values.state(names[k]);
}

template <class Step, class Arena>
void optimizer_of<Step, Arena>::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { step(learning_rate); });
}

template <class Step, class Arena>
std::string optimizer_of<Step, Arena>::server_update() const {
  return detail::server_update(constants_, std::ranges::all_of(runs_, &tensor_run::chosen));
}

template <class Step, class Arena>
void optimizer_of<Step, Arena>::step(double learning_rate) {
  ++steps_;
  for (const auto& run : runs_) {
    const auto current = detail::step_of(constants_, learning_rate, run.chosen, steps_);
    std::array<typename Arena::values, 2> states{};
    for (std::size_t k = 0; k < current.states(); ++k) states[k] = states_[k].subspan(run.first, run.count);
    const auto parameters = arena_->parameters().subspan(run.first, run.count);
    const auto gradients = arena_->gradients().subspan(run.first, run.count);
    if constexpr (requires { arena_->stream(); })
      update(current, parameters, gradients, states, arena_->stream());
    else
      update(current, parameters, gradients, states);
  }
}

template <class Step, class Arena>
void optimizer_of<Step, Arena>::describe(state_parts& parts) {
  for (auto& [name, value] : detail::properties_to_compare(constants_))
    parts.add_property(std::move(name), std::move(value));
  std::size_t decaying = 0;
  for (const auto& run : runs_) decaying += run.chosen ? run.count : 0;
  parts.add_property("the weight decay of the optimizer",
                     number_text(constants_.decay) + " of " + std::to_string(decaying) + " elements");
  if constexpr (requires { constants_.count; }) parts.add("steps of adam", std::span(&steps_, 1));
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
