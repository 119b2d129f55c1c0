// Optimizers over an arena: a class for each method, and a type-erased optimizer.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/core/env.hpp>
#include <muster/core/update.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>

namespace muster { inline namespace v0 {

/// An optimizer updates the parameters of an arena from its gradients, the gradients of the whole global batch, with a
/// learning rate from a schedule. Its arrays are named states of the arena. `describe` adds further state, as for a
/// state_owner. `apply` gives the same bits on every machine, since all ranks must agree.
template <class O>
concept optimizer = requires(O& candidate, double learning_rate, state_parts& parts) {
  candidate.apply(learning_rate);
  candidate.describe(parts);
};

/// A predicate that selects tensors; an empty filter selects all tensors. The result must be the same at every rank.
using tensor_filter = std::function<bool(const tensor_shape&)>;

/// Returns true for a tensor with two extents or more: the weights of layers, and neither biases nor the scales and
/// shifts of batch normalisation, which are usually excluded from weight decay (Goyal et al. 2017,
/// https://arxiv.org/abs/1706.02677).
[[nodiscard]] inline bool is_matrix(const tensor_shape& shape) { return shape.extents.size() >= 2; }

/// The class template of `sgd`, `adam`, `adagrad`, `lars`, `device_sgd` and `device_adam`: applies a `Step` of
/// core/update to the parameters and gradients of an `Arena`. Its arrays are states of the arena, "velocity", "mean"
/// and "square", or "squares". The optimizer refers to the arena, which must outlive it.
template <class Step, class Arena>
class optimizer_of {
 public:
  /// True if the step treats one tensor at a time, as the step of LARS does. The other steps process whole arrays.
  static constexpr bool has_a_rate_for_each_tensor = requires(Step candidate) { candidate.trust; };

  /// Takes the constants of the step in `constants`; its learning rate and count are ignored. `decay_of` selects the
  /// tensors with weight decay; lars scales the rates for these tensors alone. Throws configuration_error when a number
  /// is out of its range.
  explicit optimizer_of(Arena& values, const Step& constants = {},
                        tensor_filter decay_of = has_a_rate_for_each_tensor ? tensor_filter(is_matrix) : nullptr);

  /// Performs one step with the gradients of the whole global batch. Throws configuration_error when the learning rate
  /// is negative or not finite, and changes nothing then. O(parameters), one pass (lars reads matrices twice). For a
  /// device the step is enqueued on the arena's stream, and the call does not wait.
  void apply(double learning_rate);

  /// Returns the update function with which the servers of a parameter server perform the same step, with the learning
  /// rate as the scale of a push: "nesterov:1,0.9" (`ps::make_update`). Throws configuration_error for features that
  /// servers do not support: layer-wise rates, weight decay of selected tensors, and constants of Adam and AdaGrad
  /// other than the defaults.
  [[nodiscard]] std::string server_update() const;

  /// Describes the state to a session: the number of steps, where a step depends on it. The arena owns the other state.
  /// The optimizer must not move afterwards.
  void describe(state_parts& parts);

 private:
  /// A contiguous part of the arena's arrays, including the gaps, whose tensors are all selected by the filter or all
  /// not selected.
  struct tensor_run {
    std::size_t first = 0;
    std::size_t count = 0;
    bool chosen = true;
  };
  void step(double learning_rate);

  Arena* arena_;
  Step constants_;
  std::vector<tensor_run> runs_;
  std::array<typename Arena::values, 2> states_{};
  std::uint64_t steps_ = 0;
};

/// Optimizers over an arena of the host: `muster::sgd optimizer(arena, {.momentum = 0.9f})`.
using sgd = optimizer_of<sgd_step<float>, arena>;
using adam = optimizer_of<adam_step<float>, arena>;
using adagrad = optimizer_of<adagrad_step<float>, arena>;
using lars = optimizer_of<lars_step<float>, arena>;

/// An optimizer that servers can apply. `server_update` names the update function (`ps::make_update`).
template <class O>
concept served_optimizer = optimizer<O> && requires(const O& candidate) {
  { candidate.server_update() } -> std::convertible_to<std::string>;
};

/// An optimizer that the program selects at run time. Refers to the arena, which must outlive it.
class any_optimizer {
 public:
  /// Takes ownership of `chosen`.
  template <optimizer O>
  requires(!std::same_as<O, any_optimizer>) explicit any_optimizer(O chosen) {
    const auto held = std::make_shared<O>(std::move(chosen));
    apply_ = [held](double learning_rate) { held->apply(learning_rate); };
    describe_ = [held](state_parts& parts) { held->describe(parts); };
    if constexpr (served_optimizer<O>) server_update_ = [held] { return held->server_update(); };
  }
  any_optimizer(any_optimizer&&) noexcept = default;
  any_optimizer& operator=(any_optimizer&&) noexcept = default;

  /// Performs one step. Throws configuration_error when the learning rate is negative or not finite, and changes
  /// nothing then.
  void apply(double learning_rate) { apply_(learning_rate); }
  /// Describes the state to a session.
  void describe(state_parts& parts) { describe_(parts); }
  /// Returns the update function of servers, see `optimizer_of`. Also throws configuration_error for a user-defined
  /// optimizer without `server_update`.
  [[nodiscard]] std::string server_update() const;

 private:
  std::function<void(double)> apply_;
  std::function<void(state_parts&)> describe_;
  std::function<std::string()> server_update_;
};
static_assert(optimizer<any_optimizer>);

/// Creates the optimizer that a command line names:
///
///     sgd | momentum:M | nesterov:M | adam | adamw | lars[:M] | adagrad      [,key=value ...]
///
/// with the keys decay=D (weight decay), decay-of=all|weights (weights: tensors with two extents or more; the default
/// is `weights` for lars and `all` for the others), beta1, beta2 and epsilon for adam and adamw, epsilon for adagrad,
/// trust for lars. Throws configuration_error with the mistake and the known names.
[[nodiscard]] any_optimizer make_optimizer(arena& tensors, std::string_view text);
/// Creates the optimizer of `--optimizer` or MUSTER_OPTIMIZER.
[[nodiscard]] any_optimizer make_optimizer(arena& tensors, const settings& configuration);

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
