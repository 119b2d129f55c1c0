// One flat piece of a device's memory for everything a model learns with, and the optimizers over it.
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
/// optimizer's steps, goes on one stream, the model's; so an array may be read or written by what is put on that stream
/// and needs no other order. As an owner of state it copies by way of the host, and waits up to 60 s for it.
class device_arena final : public arena_in<device_span<float>, device_buffer<float>> {
 public:
  /// `shapes` are in the order of the layers. Throws as arena; muster::error when the device has not enough memory.
  device_arena(std::vector<tensor_shape> shapes, device_stream_ref stream);

  /// As given to the constructor, not owned.
  [[nodiscard]] device_stream_ref stream() const noexcept { return stream_; }

  /// The parameters of an arena on the host come here, or go there, and the processor waits for it, to the deadline.
  /// Throws configuration_error when the sizes differ.
  void upload(const arena& from, clock::time_point until);
  void download(arena& to, clock::time_point until);

 private:
  void add_array(state_parts& parts, const std::string& name, device_span<float> array, state_kind kind,
                 in_step change) override;

  device_stream_ref stream_;
};

/// Optimizers of device_arena: each steps as the one of the same name over an arena of the host does, to the same bits;
/// its arrays have the same names. `apply` puts the step on the arena's stream and does not wait.
using device_sgd = optimizer_of<sgd_step<float>, device_arena>;
using device_adam = optimizer_of<adam_step<float>, device_arena>;
static_assert(optimizer<device_sgd>);

/// As of the host's arena: sgd, momentum, nesterov, adam and adamw. Throws configuration_error for the others, too.
[[nodiscard]] any_optimizer make_optimizer(device_arena& of, std::string_view text);
[[nodiscard]] any_optimizer make_optimizer(device_arena& of, const settings& chosen);

}}  // namespace muster::v0
