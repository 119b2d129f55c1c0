// Adam and AdamW over an arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <muster/core/update/adam.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/tensor_filter.hpp>

namespace muster::inline v0 {

/// How `adam` steps; the meaning of each number is that of `adam_update`.
struct adam_options {
  double beta1 = 0.9;        ///< in [0, 1)
  double beta2 = 0.999;      ///< in [0, 1)
  double epsilon = 1e-8;     ///< positive
  double decay = 0.0;        ///< weight decay
  bool decoupled = true;     ///< decay as in AdamW; false: as an L2 penalty, as in Adam
  tensor_filter decay_of{};  ///< the tensors that decay; all when empty
};

/// Updates all parameters of an arena from its gradients. Has its means in the arena as states "mean" and "square", and
/// counts its steps; refers to the arena, which must outlive it.
class adam {
 public:
  /// Throws configuration_error when an option is out of its range.
  explicit adam(arena& arena, const adam_options& options = {});

  /// One step; see optimizer. O(parameters), one pass.
  void apply(double learning_rate);

  [[nodiscard]] const adam_options& options() const noexcept { return options_; }

  /// As an owner of state: the number of its steps; the rest lies in the arena. It stays at its place from then on.
  void describe(state_parts& parts);

 private:
  void update(double learning_rate);

  arena* arena_;
  adam_options options_;
  std::vector<detail::tensor_run> runs_;
  std::span<float> means_;
  std::span<float> squares_;
  std::uint64_t steps_ = 0;
};
static_assert(optimizer<adam>);

namespace detail {
/// Throws configuration_error when an option is out of its range.
void require_adam(const adam_options& options);
}  // namespace detail

}  // namespace muster::inline v0
