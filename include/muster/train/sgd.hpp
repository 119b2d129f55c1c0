// Stochastic gradient descent over an arena.
#pragma once

#include <span>
#include <vector>

#include <muster/core/update/sgd.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/tensor_filter.hpp>

namespace muster::inline v0 {

/// How `sgd` steps; the meaning of each number is that of `sgd_update`.
struct sgd_options {
  float momentum = 0.0f;     ///< in [0, 1)
  bool nesterov = false;     ///< needs a momentum
  float decay = 0.0f;        ///< weight decay, which for SGD is the same as an L2 penalty of decay / 2 * |parameters|^2
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its velocity in the arena as state "velocity"; refers to
/// the arena, which must outlive it.
class sgd {
 public:
  /// Throws configuration_error when an option is out of its range.
  explicit sgd(arena& arena, const sgd_options& options = {});

  /// One step; the gradients are those of the whole global batch. Throws configuration_error when the learning rate is
  /// negative or not finite, and changes nothing then. O(parameters), one pass.
  void apply(double learning_rate);

  [[nodiscard]] const sgd_options& options() const noexcept { return options_; }

  /// As an owner of state: all it has lies in the arena.
  void describe(state_parts&) {}

 private:
  void update(double learning_rate);

  arena* arena_;
  sgd_options options_;
  std::vector<detail::tensor_run> runs_;
  std::span<float> velocity_;
};
static_assert(optimizer<sgd>);

namespace detail {
/// Throws configuration_error when an option is out of its range.
void require_sgd(const sgd_options& options);
}  // namespace detail

}  // namespace muster::inline v0
