// An optimizer over an arena, of the host or of a device, from its options.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <muster/elastic/state.hpp>
#include <muster/train/sync/tensor_filter.hpp>

namespace muster::inline v0 {

/// What `sgd`, `adam`, `adagrad` and `lars` are, and `device_sgd` and so on: the step that `Options` describe, over the
/// parameters and gradients of an `Arena`. Its arrays are states of the arena; refers to the arena, which must outlive
/// it.
template <class Options, class Arena>
class optimizer_of {
 public:
  /// Throws configuration_error when an option is out of its range.
  explicit optimizer_of(Arena& of, const Options& options = {});

  /// One step; the gradients are those of the whole global batch. Throws configuration_error when the learning rate is
  /// negative or not finite, and changes nothing then. O(parameters), one pass (lars reads matrices twice). Over a
  /// device it goes on the arena's stream and is not waited for.
  void apply(double learning_rate);

  /// The update function by which the servers of a parameter server make the same step, with the learning rate as the
  /// scale of a push: "nesterov:1,0.9" (`ps::make_update`). Throws configuration_error for options that servers do not
  /// have: layer-wise rates, a filter of the tensors that decay, other constants of Adam and AdaGrad than the defaults.
  [[nodiscard]] std::string server_update() const;

  /// As an owner of state: the number of its steps, where a step depends on it; the rest lies in the arena. It stays at
  /// its place from then on.
  void describe(state_parts& parts);

 private:
  void step(double learning_rate);

  Arena* arena_;
  Options options_;
  std::vector<detail::tensor_run> runs_;
  std::array<typename Arena::values, 2> states_{};
  std::uint64_t steps_ = 0;
};

}  // namespace muster::inline v0
