// What each optimizer is, once: the names of its arrays, the ranges of its options, the step they stand for.
#pragma once

#include <muster/train/optimizers/optimizer_of.hpp>

#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/train/optimizers/adagrad.hpp>
#include <muster/train/optimizers/adam.hpp>
#include <muster/train/optimizers/lars.hpp>
#include <muster/train/optimizers/sgd.hpp>

#include "../layout.hpp"

namespace muster::inline v0::detail {

/// Throws configuration_error unless the rate is a number from 0 on.
void require_learning_rate(double learning_rate);
/// Throw configuration_error when an option is out of its range.
void require_valid(const sgd_options& options);
void require_valid(const adam_options& options);
void require_valid(const adagrad_options& options);
void require_valid(const lars_options& options);

/// The step of one run of tensors, the `count`-th one: those that the options' filter has chosen, or the others.
inline sgd_step<float> step_of(const sgd_options& by, double rate, bool chosen, std::uint64_t) {
  return {.learning_rate = static_cast<float>(rate),
          .momentum = by.momentum,
          .decay = chosen ? by.decay : 0.0f,
          .nesterov = by.nesterov};
}
inline adam_step<float> step_of(const adam_options& by, double rate, bool chosen, std::uint64_t count) {
  return {.learning_rate = rate,
          .beta1 = by.beta1,
          .beta2 = by.beta2,
          .epsilon = by.epsilon,
          .decay = chosen ? by.decay : 0.0,
          .decoupled = by.decoupled,
          .count = count};
}
inline adagrad_step<float> step_of(const adagrad_options& by, double rate, bool chosen, std::uint64_t) {
  return {.learning_rate = static_cast<float>(rate), .epsilon = by.epsilon, .decay = chosen ? by.decay : 0.0f};
}
inline lars_step<float> step_of(const lars_options& by, double rate, bool chosen, std::uint64_t) {
  return {.learning_rate = static_cast<float>(rate),
          .momentum = by.momentum,
          .decay = chosen ? by.decay : 0.0f,
          .trust = chosen ? by.trust : 0.0f};
}

/// What checkpoints call the arrays of a step, in its order.
inline std::vector<std::string> state_names(const sgd_options&) { return {"velocity"}; }
inline std::vector<std::string> state_names(const adam_options&) { return {"mean", "square"}; }
inline std::vector<std::string> state_names(const adagrad_options&) { return {"squares"}; }
inline std::vector<std::string> state_names(const lars_options&) { return {"velocity"}; }

/// The same step as an update function of servers. Throw configuration_error where there is none.
[[nodiscard]] std::string server_update(const sgd_options& options);
[[nodiscard]] std::string server_update(const adam_options& options);
[[nodiscard]] std::string server_update(const adagrad_options& options);
[[nodiscard]] std::string server_update(const lars_options& options);

}  // namespace muster::inline v0::detail

namespace muster::inline v0 {

template <class Options, class Arena>
optimizer_of<Options, Arena>::optimizer_of(Arena& of, const Options& options) : arena_(&of), options_(options) {
  detail::require_valid(options);
  if constexpr (requires { options.scaled; })
    runs_ = detail::tensors_of(of.shapes(), of.extents(), options.scaled);  // a rate for each
  else
    runs_ = detail::runs_of(of.shapes(), of.extents(), options.decay == 0 ? nullptr : options.decay_of);
  const auto names = detail::state_names(options);
  for (std::size_t k = 0; k < detail::step_of(options, 0.0, true, 1).states(); ++k) states_[k] = of.state(names[k]);
}

template <class Options, class Arena>
void optimizer_of<Options, Arena>::apply(double learning_rate) {
  detail::require_learning_rate(learning_rate);
  arena_->update([this, learning_rate] { step(learning_rate); });
}

template <class Options, class Arena>
std::string optimizer_of<Options, Arena>::server_update() const {
  return detail::server_update(options_);
}

template <class Options, class Arena>
void optimizer_of<Options, Arena>::step(double learning_rate) {
  ++steps_;
  for (const auto& run : runs_) {
    const auto by = detail::step_of(options_, learning_rate, run.chosen, steps_);
    std::array<typename Arena::values, 2> states{};
    for (std::size_t k = 0; k < by.states(); ++k) states[k] = states_[k].subspan(run.first, run.count);
    const auto parameters = arena_->parameters().subspan(run.first, run.count);
    const auto gradients = arena_->gradients().subspan(run.first, run.count);
    if constexpr (requires { arena_->stream(); })
      update(by, parameters, gradients, states, arena_->stream());
    else
      update(by, parameters, gradients, states);
  }
}

template <class Options, class Arena>
void optimizer_of<Options, Arena>::describe(state_parts& parts) {
  if constexpr (requires { options_.beta1; }) parts.add("steps of adam", std::span(&steps_, 1));
}

}  // namespace muster::inline v0
