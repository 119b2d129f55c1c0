// Optimizers over the arena of a device.
#pragma once

#include <cstdint>
#include <vector>

#include <muster/core/device/update.hpp>
#include <muster/train/adam.hpp>
#include <muster/train/device/arena.hpp>
#include <muster/train/optimizer.hpp>
#include <muster/train/sgd.hpp>

namespace muster::inline v0 {

// Each steps as its twin over an arena of the host does, to the same bits, with its options and their checks; its
// arrays have the same names. `apply` puts the step on the arena's stream and does not wait. Refer to the arena.

class device_sgd {
 public:
  explicit device_sgd(device_arena& arena, const sgd_options& options = {});

  void apply(double learning_rate);
  void describe(state_parts&) {}  // all that it keeps lies in the arena

 private:
  device_arena* arena_;
  sgd_options options_;
  std::vector<detail::tensor_run> runs_;
  device_span<float> velocity_;
};
static_assert(optimizer<device_sgd>);

class device_adam {
 public:
  explicit device_adam(device_arena& arena, const adam_options& options = {});

  void apply(double learning_rate);
  /// The number of its steps; it stays at its place from then on.
  void describe(state_parts& parts);

 private:
  device_arena* arena_;
  adam_options options_;
  std::vector<detail::tensor_run> runs_;
  device_span<float> means_;
  device_span<float> squares_;
  std::uint64_t steps_ = 0;
};
static_assert(optimizer<device_adam>);

}  // namespace muster::inline v0
