// A model's parameters, gradients and optimizer state in a device's memory, and the optimizers over them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/optimizers/optimizer.hpp>

namespace muster { inline namespace v0 {

/// An arena on the current device, with the layout of an arena of the same shapes on the host. Its own work, such as an
/// optimizer's steps, runs on one stream, the model's. Operations that are enqueued on that stream may read and write
/// the arrays without further synchronisation. As an owner of state the arena copies through the host, and waits up to
/// 60 s for the copy.
class device_arena final : public arena_in<device_span<float>, device_buffer<float>> {
 public:
  /// Takes `shapes` in the order of the layers. Throws the errors of arena, and muster::error when the device has too
  /// little memory.
  device_arena(std::vector<tensor_shape> shapes, device_stream_ref stream);

  /// Returns the stream of the constructor's argument. The arena does not own the stream.
  [[nodiscard]] device_stream_ref stream() const noexcept { return stream_; }

  /// Copies the parameters from or to an arena on the host, and blocks until the copy is complete or the deadline
  /// passes. Throws configuration_error when the sizes differ.
  void upload(const arena& source, clock::time_point deadline);
  void download(arena& destination, clock::time_point deadline);

 private:
  void add_array(state_parts& parts, const std::string& name, device_span<float> array, state_kind kind,
                 rollback_policy change) override;

  device_stream_ref stream_;
};

/// Optimizers of device_arena. Each performs the same step as the optimizer of the same name over an arena on the host,
/// with the same bits and the same array names. `apply` enqueues the step on the arena's stream and does not wait.
using device_sgd = optimizer_of<sgd_step<float>, device_arena>;
using device_adam = optimizer_of<adam_step<float>, device_arena>;
static_assert(optimizer<device_sgd>);

/// Creates an optimizer as for an arena on the host: sgd, momentum, nesterov, adam or adamw. Throws configuration_error
/// for other optimizers, too.
[[nodiscard]] any_optimizer make_optimizer(device_arena& tensors, std::string_view text);
[[nodiscard]] any_optimizer make_optimizer(device_arena& tensors, const settings& configuration);

}}  // namespace muster::v0
