// Spans of elements in the memory of a device.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

#include <muster/core/dtype.hpp>

namespace muster { inline namespace v0 {

/// A view of `size` elements in a device's memory, which the processor can address but not access. It is a separate
/// type without operator[] and iterators, so that host code and host collectives reject it at compile time. Owns
/// nothing.
template <class T>
class device_span {
 public:
  constexpr device_span() noexcept = default;
  /// `first` is an address in a device's memory; null for no elements.
  constexpr device_span(T* first, std::size_t size) noexcept : first_(first), size_(size) {}
  /// Converts a view of mutable elements to a view of constant elements.
  template <class U>
  requires std::same_as<T, const U>
  constexpr device_span(device_span<U> other) noexcept  // NOLINT: converts as std::span does
      : first_(other.data()), size_(other.size()) {}

  [[nodiscard]] constexpr T* data() const noexcept { return first_; }
  [[nodiscard]] constexpr std::size_t size() const noexcept { return size_; }
  /// Works like std::span, without checks.
  [[nodiscard]] constexpr std::size_t size_bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] constexpr bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] constexpr device_span subspan(std::size_t first, std::size_t count) const noexcept {
    return {first_ + first, count};
  }
  [[nodiscard]] constexpr device_span first(std::size_t count) const noexcept { return {first_, count}; }

 private:
  T* first_ = nullptr;
  std::size_t size_ = 0;
};

/// The element types of devices' collectives: integers of 1, 4 and 8 bytes, float16, bfloat16, float and double.
template <class T>
concept device_element =
    element<T> && !std::same_as<T, bool> && !std::same_as<T, long double> && (!std::is_integral_v<T> || sizeof(T) != 2);

}}  // namespace muster::v0
