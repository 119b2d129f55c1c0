// Optimizers over an arena: of one method each, or any of them as one value.
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

/// Updates the parameters of an arena from its gradients, which are those of the whole global batch, with a learning
/// rate that schedules give. Its arrays are named states of the arena; `describe` says what else it keeps, as a
/// state_owner. `apply` gives the same bits on every machine, since all ranks must agree.
template <class O>
concept optimizer = requires(O& by, double learning_rate, state_parts& parts) {
  by.apply(learning_rate);
  by.describe(parts);
};

/// Says of each tensor whether it is one of those that something is for; empty means all. The same at every rank.
using tensor_filter = std::function<bool(const tensor_shape&)>;

/// Those with two extents or more: the weights of layers, and neither biases nor the scales and shifts of batch
/// normalisation, which are usually left out of weight decay (Goyal et al. 2017, https://arxiv.org/abs/1706.02677).
[[nodiscard]] inline bool is_matrix(const tensor_shape& shape) { return shape.extents.size() >= 2; }

/// What `sgd`, `adam`, `adagrad` and `lars` are, and `device_sgd` and so on: a `Step` of core/update over the
/// parameters and gradients of an `Arena`. Its arrays are states of the arena, "velocity", "mean" and "square", or
/// "squares"; refers to the arena, which must outlive it.
template <class Step, class Arena>
class optimizer_of {
 public:
  /// Whether the step is of one tensor at a time, as that of LARS; the others step along whole arrays.
  static constexpr bool has_a_rate_for_each_tensor = requires(Step how) { how.trust; };

  /// `how` has the numbers of the step, but for its learning rate and its count. `decay_of`: the tensors that decay;
  /// lars scales the rates of these alone. Throws configuration_error when a number is out of its range.
  explicit optimizer_of(Arena& of, const Step& how = {},
                        tensor_filter decay_of = has_a_rate_for_each_tensor ? tensor_filter(is_matrix) : nullptr);

  /// One step; the gradients are those of the whole global batch. Throws configuration_error when the learning rate is
  /// negative or not finite, and changes nothing then. O(parameters), one pass (lars reads matrices twice). Over a
  /// device it goes on the arena's stream and is not waited for.
  void apply(double learning_rate);

  /// The update function by which the servers of a parameter server make the same step, with the learning rate as the
  /// scale of a push: "nesterov:1,0.9" (`ps::make_update`). Throws configuration_error for what servers do not have:
  /// layer-wise rates, some tensors alone that decay, other constants of Adam and AdaGrad than the defaults.
  [[nodiscard]] std::string server_update() const;

  /// As an owner of state: the number of its steps, where a step depends on it; the rest lies in the arena. It stays at
  /// its place from then on.
  void describe(state_parts& parts);

 private:
  /// A part of the arena's arrays of which all tensors are chosen by the filter, or none; the gaps between them
  /// included.
  struct tensor_run {
    std::size_t first = 0;
    std::size_t count = 0;
    bool chosen = true;
  };
  void step(double learning_rate);

  Arena* arena_;
  Step how_;
  std::vector<tensor_run> runs_;
  std::array<typename Arena::values, 2> states_{};
  std::uint64_t steps_ = 0;
};

/// Optimizers over an arena of the host: `muster::sgd optimizer(arena, {.momentum = 0.9f})`.
using sgd = optimizer_of<sgd_step<float>, arena>;
using adam = optimizer_of<adam_step<float>, arena>;
using adagrad = optimizer_of<adagrad_step<float>, arena>;
using lars = optimizer_of<lars_step<float>, arena>;

/// An optimizer that servers can apply: says by which update function (`ps::make_update`).
template <class O>
concept served_optimizer = optimizer<O> && requires(const O& by) {
  { by.server_update() } -> std::convertible_to<std::string>;
};

/// An optimizer that was chosen when the program ran. Refers to the arena, which must outlive it.
class any_optimizer {
 public:
  /// Holds `by`.
  template <optimizer O>
  requires(!std::same_as<O, any_optimizer>) explicit any_optimizer(O by) {
    const auto held = std::make_shared<O>(std::move(by));
    apply_ = [held](double learning_rate) { held->apply(learning_rate); };
    describe_ = [held](state_parts& parts) { held->describe(parts); };
    if constexpr (served_optimizer<O>) server_update_ = [held] { return held->server_update(); };
  }
  any_optimizer(any_optimizer&&) noexcept = default;
  any_optimizer& operator=(any_optimizer&&) noexcept = default;

  /// One step. Throws configuration_error when the learning rate is negative or not finite, and changes nothing then.
  void apply(double learning_rate) { apply_(learning_rate); }
  /// As an owner of state.
  void describe(state_parts& parts) { describe_(parts); }
  /// See `optimizer_of`. Throws configuration_error, too, for a user-defined optimizer without one.
  [[nodiscard]] std::string server_update() const;

 private:
  std::function<void(double)> apply_;
  std::function<void(state_parts&)> describe_;
  std::function<std::string()> server_update_;
};
static_assert(optimizer<any_optimizer>);

/// The optimizer that command lines name:
///
///     sgd | momentum:M | nesterov:M | adam | adamw | lars[:M] | adagrad      [,key=value ...]
///
/// with the keys decay=D (weight decay), decay-of=all|weights (of tensors with two extents or more; `weights` for lars,
/// `all` for the others when it is not given), beta1, beta2 and epsilon for adam and adamw, epsilon for adagrad, trust
/// for lars. Throws configuration_error saying what is wrong and what is known.
[[nodiscard]] any_optimizer make_optimizer(arena& of, std::string_view text);
/// That of `--optimizer` or MUSTER_OPTIMIZER.
[[nodiscard]] any_optimizer make_optimizer(arena& of, const settings& chosen);

}}  // namespace muster::v0
