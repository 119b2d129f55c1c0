// Layer-wise adaptive rate scaling over an arena, for large batches.
#pragma once

#include <span>
#include <vector>

#include <muster/core/update/lars.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/tensor_filter.hpp>

namespace muster::inline v0 {

/// How `lars` steps; the meaning of each number is that of `lars_update`.
struct lars_options {
  float momentum = 0.9f;             ///< in [0, 1)
  float decay = 0.0f;                ///< weight decay
  float trust = 0.001f;              ///< by how much of its norm a layer may change; positive
  tensor_filter scaled = is_matrix;  ///< the tensors that are scaled and decay; the others step by momentum SGD
};

/// Updates all parameters of an arena from its gradients, each tensor with a rate of its own. Has its velocity in the
/// arena as state "velocity"; refers to the arena, which must outlive it.
class lars {
 public:
  /// Throws configuration_error when an option is out of its range.
  explicit lars(arena& arena, const lars_options& options = {});

  /// One step; see optimizer. O(parameters); reads the parameters and gradients of scaled tensors twice.
  void apply(double learning_rate);

  [[nodiscard]] const lars_options& options() const noexcept { return options_; }

  /// As an owner of state: all it has lies in the arena.
  void describe(state_parts&) {}

 private:
  void update(double learning_rate);

  arena* arena_;
  lars_options options_;
  std::vector<detail::tensor_run> tensors_;
  std::span<float> velocity_;
};
static_assert(optimizer<lars>);

}  // namespace muster::inline v0
