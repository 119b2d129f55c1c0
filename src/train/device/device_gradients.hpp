// The common base of gradients in a device's memory: the layout, the arithmetic, the type in which they are sent.
#pragma once

#include <concepts>
#include <functional>
#include <string>

#include <muster/core/device/kernels.hpp>
#include <muster/core/error.hpp>
#include <muster/train/device/gradients.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Timeout for the work on a stream after all its collectives are complete. That work waits for no other rank.
inline constexpr seconds local_work_timeout{60};

/// Adds an array in a device's memory to a state, which copies the array through the host. `array` returns the current
/// array. The owner must defer changes of the array to the commit of a step.
void add_array(state_parts& parts, const std::string& name, state_kind kind, std::function<device_span<float>()> array,
               device_stream_ref stream);

class device_gradients : public gradient_backend {
 public:
  device_gradients(device_arena& tensors, dtype send_as) : arena_(&tensors), send_as_(send_as) {
    if (send_as != dtype::float32 && send_as != dtype::float16 && send_as != dtype::bfloat16) {
      throw configuration_error("gradients cannot be sent as " + std::string(to_string(send_as)) +
                                " (gradients of a device can be added as float32, float16 or bfloat16); choose one");
    }
    if (send_as != dtype::float32) halves_ = device_buffer<std::uint16_t>(tensors.gradients().size());
  }

  arena_base& base_arena() noexcept override { return *arena_; }
  void attach(std::span<const gradient_bucket> buckets) override { buckets_ = buckets; }
  void finish() override { device_event(stream_).delay(arena_->stream()); }

  void clear(const block& elements) override {
    muster::clear(part_of(elements), arena_->stream());
  }  // before the gradients are sent
  void scale(const block& elements, double factor) override {
    muster::scale(part_of(elements), static_cast<float>(factor), stream_);
  }
  double sum_of_squares(const block& elements) override {
    // Needed for clipping and for the check of the first step.
    if (sums_.size() == 0) sums_ = device_buffer<double>(sum_scratch(arena_->gradients().size()));
    muster::sum_of_squares(part_of(elements), sums_.span(), stream_);
    double squares = 0;
    copy(sums_.span().first(1), std::span<double>(&squares, 1), stream_);
    wait_for(stream_, deadline_after(local_work_timeout));
    return squares;
  }

 protected:
  [[nodiscard]] device_arena& arena() noexcept { return *arena_; }
  /// Returns the stream that receives the sums and runs the arithmetic on the sums.
  [[nodiscard]] device_stream_ref stream() const noexcept { return stream_; }
  [[nodiscard]] const block& part_of_bucket(std::size_t bucket) const { return buckets_[bucket].elements; }
  [[nodiscard]] device_span<float> part_of(const block& elements) {
    return arena_->gradients().subspan(elements.first, elements.count);
  }
  [[nodiscard]] std::size_t bytes_each() const noexcept { return send_as_ == dtype::float32 ? 4 : 2; }

  /// Calls `f` with a value of the type in which gradients are sent.
  template <class F>
  void as_sent(const F& f) {
    if (send_as_ == dtype::float32) return f(0.0f);
    send_as_ == dtype::float16 ? f(float16()) : f(bfloat16());
  }
  /// Returns the part in the type in which it is sent: the gradients themselves, or their 16-bit copies.
  template <class T>
  [[nodiscard]] device_span<T> sent(const block& elements) {
    if constexpr (std::same_as<T, float>)
      return part_of(elements);
    else
      return {reinterpret_cast<T*>(halves_.span().data()) + elements.first, elements.count};
  }
  template <class T>
  void round(const block& elements, device_stream_ref stream) {
    if constexpr (!std::same_as<T, float>) convert(part_of(elements), sent<T>(elements), stream);
  }
  template <class T>
  void widen(const block& elements, device_stream_ref stream) {
    if constexpr (!std::same_as<T, float>) convert(device_span<const T>(sent<T>(elements)), part_of(elements), stream);
  }

 private:
  device_arena* arena_;
  dtype send_as_;
  std::span<const gradient_bucket> buckets_;
  device_stream stream_;
  device_buffer<std::uint16_t> halves_;
  device_buffer<double> sums_;
};

}}}  // namespace muster::v0::detail
