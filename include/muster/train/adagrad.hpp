// AdaGrad over an arena.
#pragma once

#include <span>
#include <vector>

#include <muster/core/update/adagrad.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/tensor_filter.hpp>

namespace muster::inline v0 {

/// How `adagrad` steps; the meaning of each number is that of `adagrad_update`.
struct adagrad_options {
  float epsilon = 1e-10f;    ///< positive
  float decay = 0.0f;        ///< weight decay, as an L2 penalty
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its sums in the arena as state "squares"; refers to the
/// arena, which must outlive it.
class adagrad {
 public:
  /// Throws configuration_error when an option is out of its range.
  explicit adagrad(arena& arena, const adagrad_options& options = {});

  /// One step; see optimizer. O(parameters), one pass.
  void apply(double learning_rate);

  [[nodiscard]] const adagrad_options& options() const noexcept { return options_; }

  /// As an owner of state: all it has lies in the arena.
  void describe(state_parts&) {}

 private:
  void update(double learning_rate);

  arena* arena_;
  adagrad_options options_;
  std::vector<detail::tensor_run> runs_;
  std::span<float> squares_;
};
static_assert(optimizer<adagrad>);

}  // namespace muster::inline v0
