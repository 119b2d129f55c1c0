// Device memory and pinned host memory, each with a single owner, and copies between them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>

#include <muster/core/device/span.hpp>
#include <muster/core/device/stream.hpp>

namespace muster { inline namespace v0 {

namespace detail {
struct device_release {
  void operator()(void* memory) const noexcept;
};
struct pinned_release {
  void operator()(void* memory) const noexcept;
};
/// Returns zeroed memory. Throws muster::error, with the amount of free memory, when there is not enough.
[[nodiscard]] void* allocate_on_device(std::size_t bytes);
/// Returns zeroed pinned memory of the host. Throws muster::error with CUDA's own text.
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
void copy_anywhere(const void* source, void* destination, std::size_t bytes, device_stream_ref stream);
void clear_on_device(void* memory, std::size_t bytes, device_stream_ref stream);
void require_same_size(std::size_t source_size, std::size_t destination_size);
}  // namespace detail

/// A zeroed array of `size` elements of T on the current device with a single owner, aligned to at least 256 bytes.
template <class T>
class device_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "a device holds plain values");

 public:
  device_buffer() = default;
  /// Allocates the array. Throws muster::error with CUDA's own text when the device has not enough memory. A size of 0
  /// allocates nothing.
  explicit device_buffer(std::size_t size)
      : memory_(size == 0 ? nullptr : detail::allocate_on_device(size * sizeof(T))), size_(size) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// Returns all elements. The span dangles after the buffer's destruction.
  [[nodiscard]] device_span<T> span() noexcept { return {static_cast<T*>(memory_.get()), size_}; }
  [[nodiscard]] device_span<const T> span() const noexcept { return {static_cast<const T*>(memory_.get()), size_}; }

 private:
  std::unique_ptr<void, detail::device_release> memory_;
  std::size_t size_ = 0;
};

/// A zeroed array of `size` elements of T in pinned host memory with a single owner. Copies from and to it do not block
/// the processor, and kernels can use it at the same address. No device may use it when it is destroyed.
template <class T>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "a device holds plain values");

 public:
  pinned_buffer() = default;
  /// Allocates the array. Throws muster::error with CUDA's own text when the system does not pin that much memory. A
  /// size of 0 allocates nothing.
  explicit pinned_buffer(std::size_t size)
      : memory_(size == 0 ? nullptr : detail::allocate_pinned(size * sizeof(T))), size_(size) {}

  /// Returns all elements. The span dangles after the buffer's destruction.
  [[nodiscard]] std::span<T> span() noexcept { return {static_cast<T*>(memory_.get()), size_}; }

 private:
  std::unique_ptr<void, detail::pinned_release> memory_;
  std::size_t size_ = 0;
};

/// Copies in the order of the stream. Both spans must have the same length (configuration_error) and live until the
/// copy is complete. If the host memory is not pinned the call itself may block until then.
template <class T>
void copy(std::span<const std::type_identity_t<T>> source, device_span<T> destination, device_stream_ref stream) {
  detail::require_same_size(source.size(), destination.size());
  detail::copy_anywhere(source.data(), destination.data(), source.size_bytes(), stream);
}
template <class T>
void copy(device_span<const std::type_identity_t<T>> source, std::span<T> destination, device_stream_ref stream) {
  detail::require_same_size(source.size(), destination.size());
  detail::copy_anywhere(source.data(), destination.data(), destination.size_bytes(), stream);
}
template <class T>
void copy(device_span<const std::type_identity_t<T>> source, device_span<T> destination, device_stream_ref stream) {
  detail::require_same_size(source.size(), destination.size());
  detail::copy_anywhere(source.data(), destination.data(), destination.size_bytes(), stream);
}

/// Sets all bits to zero, in the order of the stream.
template <class T>
void clear(device_span<T> values, device_stream_ref stream) {
  detail::clear_on_device(values.data(), values.size_bytes(), stream);
}

}}  // namespace muster::v0
