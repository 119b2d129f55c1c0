// Aligned memory with a single owner.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

namespace muster { inline namespace v0 {

/// Alignment of every buffer in bytes: a cache line, and the widest vector register.
inline constexpr std::size_t buffer_alignment = 64;

namespace detail {

/// Size in bytes from which a buffer without a memory resource is mapped directly from the system, in separate pages.
inline constexpr std::size_t least_mapped = std::size_t{8} << 20;

/// Maps zeroed pages from the system, which provides a page when a thread first touches it. Writing the zeros here
/// would cost a pass over memory on one thread. Uses large pages (2 MiB) where the system grants them: a shuffle that
/// accesses gigabytes of samples at random otherwise spends much of its time in page-table lookups of small pages.
/// Throws std::bad_alloc.
[[nodiscard]] void* map_zeros(std::size_t bytes);
void unmap_zeros(void* memory, std::size_t bytes) noexcept;

}  // namespace detail

/// A zeroed, 64-byte aligned array of `size` elements with a single owner. Moves in O(1). Not copyable.
template <class T>
class buffer {
  static_assert(std::is_trivially_copyable_v<T>, "a muster::buffer holds plain values; use std::vector for others");

 public:
  buffer() = default;
  /// Allocates from the free store, or from `resource`, which must outlive the buffer.
  explicit buffer(std::size_t size, std::pmr::memory_resource* resource = nullptr)
      : data_(allocate(size, resource), release{resource, size}), size_(size) {
    if (!is_mapped(size, resource)) std::uninitialized_value_construct_n(data_.get(), size);
  }
  buffer(buffer&& other) noexcept : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  buffer& operator=(buffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  [[nodiscard]] T* data() noexcept { return data_.get(); }
  [[nodiscard]] const T* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] T* begin() noexcept { return data(); }
  [[nodiscard]] T* end() noexcept { return data() + size_; }
  [[nodiscard]] const T* begin() const noexcept { return data(); }
  [[nodiscard]] const T* end() const noexcept { return data() + size_; }
  T& operator[](std::size_t i) noexcept { return data()[i]; }
  const T& operator[](std::size_t i) const noexcept { return data()[i]; }
  /// Returns all elements. The span dangles after the buffer's destruction.
  [[nodiscard]] std::span<T> span() noexcept { return {data(), size_}; }
  [[nodiscard]] std::span<const T> span() const noexcept { return {data(), size_}; }

 private:
  struct release {
    std::pmr::memory_resource* source = nullptr;
    std::size_t size = 0;
    void operator()(T* memory) const noexcept {
      if (source != nullptr)
        source->deallocate(memory, size * sizeof(T), buffer_alignment);
      else if (is_mapped(size, source))
        detail::unmap_zeros(memory, size * sizeof(T));
      else
        ::operator delete (memory, std::align_val_t{buffer_alignment});
    }
  };
  /// Returns true if the buffer is mapped. A type with a non-trivial constructor is excluded, since its default value
  /// may not be all zeros.
  static constexpr bool is_mapped(std::size_t size, const std::pmr::memory_resource* resource) noexcept {
    return std::is_trivially_default_constructible_v<T> && resource == nullptr &&
           size >= detail::least_mapped / sizeof(T);
  }
  static T* allocate(std::size_t size, std::pmr::memory_resource* resource) {
    if (size == 0) return nullptr;
    if (size > std::size_t(-1) / sizeof(T)) throw std::bad_array_new_length();
    if (resource != nullptr) return static_cast<T*>(resource->allocate(size * sizeof(T), buffer_alignment));
    if (is_mapped(size, resource)) return static_cast<T*>(detail::map_zeros(size * sizeof(T)));
    return static_cast<T*>(::operator new (size * sizeof(T), std::align_val_t{buffer_alignment}));
  }

  std::unique_ptr<T, release> data_;
  std::size_t size_ = 0;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
