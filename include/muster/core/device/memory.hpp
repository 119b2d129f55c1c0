// Memory of a device and pinned memory of the host, each with one owner, and copies between them.
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
/// Zeroed; throws muster::error, with what is free, when there is not enough.
[[nodiscard]] void* allocate_on_device(std::size_t bytes);
[[nodiscard]] void* allocate_pinned(std::size_t bytes);
void copy_anywhere(const void* from, void* to, std::size_t bytes, device_stream_ref stream);
void clear_on_device(void* memory, std::size_t bytes, device_stream_ref stream);
void require_same_size(std::size_t from, std::size_t to);
}  // namespace detail

/// `size` elements of T on the current device, zeroed, owned by this object; aligned to 256 bytes at least.
template <class T>
class device_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "a device holds plain values");

 public:
  device_buffer() = default;
  /// Throws muster::error with CUDA's own text when the device has not enough memory; none is allocated for 0.
  explicit device_buffer(std::size_t size)
      : memory_(size == 0 ? nullptr : detail::allocate_on_device(size * sizeof(T))), size_(size) {}

  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  /// All elements; dangles after the buffer.
  [[nodiscard]] device_span<T> span() noexcept { return {static_cast<T*>(memory_.get()), size_}; }
  [[nodiscard]] device_span<const T> span() const noexcept { return {static_cast<const T*>(memory_.get()), size_}; }

 private:
  std::unique_ptr<void, detail::device_release> memory_;
  std::size_t size_ = 0;
};

/// `size` elements of T in pinned memory of the host, zeroed, owned by this object: copies from and to it do not keep
/// the processor, and kernels can use it at the same address. Destroyed when no device uses it any more.
template <class T>
class pinned_buffer {
  static_assert(std::is_trivially_copyable_v<T>, "a device holds plain values");

 public:
  pinned_buffer() = default;
  /// Throws muster::error with CUDA's own text when the system does not pin so much; none is allocated for 0.
  explicit pinned_buffer(std::size_t size)
      : memory_(size == 0 ? nullptr : detail::allocate_pinned(size * sizeof(T))), size_(size) {}

  /// All elements; dangles after the buffer.
  [[nodiscard]] std::span<T> span() noexcept { return {static_cast<T*>(memory_.get()), size_}; }

 private:
  std::unique_ptr<void, detail::pinned_release> memory_;
  std::size_t size_ = 0;
};

/// Copies in the order of the stream; both spans have one length (configuration_error) and stay until it is done. From
/// and to host memory that is not pinned the call may itself wait for the copy.
template <class T>
void copy(std::span<const std::type_identity_t<T>> from, device_span<T> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::copy_anywhere(from.data(), to.data(), from.size_bytes(), stream);
}
template <class T>
void copy(device_span<const std::type_identity_t<T>> from, std::span<T> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::copy_anywhere(from.data(), to.data(), to.size_bytes(), stream);
}
template <class T>
void copy(device_span<const std::type_identity_t<T>> from, device_span<T> to, device_stream_ref stream) {
  detail::require_same_size(from.size(), to.size());
  detail::copy_anywhere(from.data(), to.data(), to.size_bytes(), stream);
}

/// Sets all bits to zero, in the order of the stream.
template <class T>
void clear(device_span<T> values, device_stream_ref stream) {
  detail::clear_on_device(values.data(), values.size_bytes(), stream);
}

}}  // namespace muster::v0
