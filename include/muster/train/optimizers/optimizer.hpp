// What optimizers have in common, and any of them as one value.
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <muster/core/env.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>

namespace muster::inline v0 {

/// Updates the parameters of an arena from its gradients, which are those of the whole global batch, with a learning
/// rate that schedules give. Its arrays are named states of the arena; `describe` says what else it keeps, as a
/// state_owner. `apply` gives the same bits on every machine, since all ranks must agree.
template <class O>
concept optimizer = requires(O& by, double learning_rate, state_parts& parts) {
  by.apply(learning_rate);
  by.describe(parts);
};

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

}  // namespace muster::inline v0
