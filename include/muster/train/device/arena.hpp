// One flat piece of a device's memory for everything a model learns with.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/device/memory.hpp>
#include <muster/core/device/stream.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>

namespace muster::inline v0 {

/// An arena on the current device: parameters, gradients and optimizer state, each contiguous, with the layout of an
/// arena of the same shapes on the host. Its own work, such as an optimizer's steps, goes on one stream, the model's;
/// so an array may be read or written by what is put on that stream and needs no other order. Not copied or moved, and
/// not thread safe.
class device_arena {
 public:
  /// `shapes` are in the order of the layers. Throws as arena; muster::error when the device has not enough memory. All
  /// values start as zeros.
  device_arena(std::vector<tensor_shape> shapes, device_stream_ref stream);
  device_arena(const device_arena&) = delete;
  device_arena& operator=(const device_arena&) = delete;

  [[nodiscard]] device_span<float> parameters() noexcept { return parameters_.span(); }
  /// What is reduced over the ranks.
  [[nodiscard]] device_span<float> gradients() noexcept { return gradients_.span().subspan(head, size_); }
  /// An array of the optimizer with the layout of the parameters, made of zeros when it is first asked for.
  [[nodiscard]] device_span<float> state(const std::string& name);

  [[nodiscard]] const std::vector<tensor_shape>& shapes() const noexcept { return shapes_; }
  [[nodiscard]] const std::vector<block>& extents() const noexcept { return extents_; }
  [[nodiscard]] device_stream_ref stream() const noexcept { return stream_; }
  /// One tensor's part. Throws configuration_error when `tensor` is not below shapes().size().
  [[nodiscard]] device_span<float> parameter(std::size_t tensor) { return view(parameters(), tensor); }
  [[nodiscard]] device_span<float> gradient(std::size_t tensor) { return view(gradients(), tensor); }

  /// The parameters of an arena on the host come here, or go there, and the processor waits for it, to the deadline.
  /// Throws configuration_error when the sizes differ.
  void upload(const arena& from, clock::time_point until);
  void download(arena& to, clock::time_point until);

  /// As an owner of state: the parameters and the optimizer's arrays, replicated. Copies by way of the host, and waits
  /// up to 60 s for it.
  void describe(state_parts& parts);

 private:
  friend class device_gradient_sync;
  // In front of the gradients, for what is reduced with the first of them.
  static constexpr std::size_t head = buffer_alignment / sizeof(float);
  [[nodiscard]] device_span<float> view(device_span<float> whole, std::size_t tensor) const;
  void add_to(state_parts& parts, const std::string& name, device_span<float> values);

  std::vector<tensor_shape> shapes_;
  std::vector<block> extents_;
  std::size_t size_;
  device_stream_ref stream_;
  device_buffer<float> parameters_;
  device_buffer<float> gradients_;
  std::map<std::string, device_buffer<float>, std::less<>> states_;
};

}  // namespace muster::inline v0
