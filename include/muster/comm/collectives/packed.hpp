// Views with strides as arguments of collectives: matrices, blocks of matrices, multi-dimensional arrays.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include <muster/core/dtype.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

/// A view with the interface of std::mdspan, also of Kokkos and of the reference implementation, whose elements are in
/// memory: `data_handle`, `rank`, `extent` and `stride`. A view whose accessor computes values is not one.
template <class V>
concept strided_view = std::same_as<typename V::reference, typename V::element_type&> && requires(const V& view) {
  { *view.data_handle() } -> std::same_as<typename V::element_type&>;
  { view.extent(0) } -> std::convertible_to<std::size_t>;
  { view.stride(0) } -> std::convertible_to<std::size_t>;
  { V::rank() } -> std::convertible_to<std::size_t>;
};

/// A matrix, map or block of Eigen whose elements are in memory.
template <class M>
concept strided_matrix = requires(M& matrix) {
  { matrix.rows() } -> std::convertible_to<std::ptrdiff_t>;
  { matrix.cols() } -> std::convertible_to<std::ptrdiff_t>;
  { matrix.innerStride() } -> std::convertible_to<std::ptrdiff_t>;
  { matrix.outerStride() } -> std::convertible_to<std::ptrdiff_t>;
  { *matrix.data() } -> std::convertible_to<typename std::remove_reference_t<M>::Scalar>;
  std::remove_reference_t<M>::IsRowMajor ? 1 : 0;
};

/// The elements of a view as the contiguous range that collectives take: `allreduce(world, packed(view), sum)`. Where
/// the elements of the view are contiguous, it is their memory. Otherwise it is a copy, whose destructor writes the
/// elements back that a collective has changed, so the view has the result when the object is destroyed. One view may
/// be input and output of a call. The elements are in the order of their addresses, so the strides of the views of all
/// ranks have the same order. Throws configuration_error for a view that may alias itself: a stride that is shorter
/// than the elements of the dimensions with smaller strides. A temporary, so for calls that wait.
template <class T>
class packed {
 public:
  using value_type = std::remove_const_t<T>;  ///< the type of an element

  /// Packs the elements of a view.
  template <strided_view V>
  requires std::same_as<T, typename V::element_type>
  explicit packed(const V& view) : source_(view.data_handle()) {
    for (std::size_t r = 0; r < V::rank(); ++r)
      add(static_cast<std::size_t>(view.extent(r)), static_cast<std::size_t>(view.stride(r)));
    pack();
  }
  /// Packs the elements of a matrix, map or block.
  template <strided_matrix M>
  explicit packed(M&& matrix) : source_(matrix.data()) {
    using matrix_type = std::remove_reference_t<M>;
    const auto rows = static_cast<std::size_t>(matrix.rows());
    const auto columns = static_cast<std::size_t>(matrix.cols());
    add(matrix_type::IsRowMajor ? columns : rows, static_cast<std::size_t>(matrix.innerStride()));
    add(matrix_type::IsRowMajor ? rows : columns, static_cast<std::size_t>(matrix.outerStride()));
    pack();
  }
  packed(const packed&) = delete;
  packed& operator=(const packed&) = delete;
  ~packed() {
    if constexpr (!std::is_const_v<T>) {
      if (!copy_) return;
      const value_type* const packed_values = copy_.get() + size_;
      for_each([&](T& element, value_type& copied) {
        if (std::memcmp(&copied, packed_values + (&copied - copy_.get()), sizeof copied) != 0) element = copied;
      });
    }
  }

  /// Returns the elements, one after another.
  [[nodiscard]] T* data() const noexcept { return copy_ ? copy_.get() : source_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* begin() const noexcept { return data(); }
  [[nodiscard]] T* end() const noexcept { return data() + size_; }

 private:
  struct dimension {
    std::size_t extent = 1;
    std::size_t stride = 1;
  };
  static constexpr std::size_t most = 16;  // dimensions

  void add(std::size_t extent, std::size_t stride) {
    size_ *= extent;
    if (extent == 1) return;
    if (used_ == most) throw configuration_error("a view has more than 16 dimensions (a packed view has at most 16)");
    dimensions_[used_++] = {extent, stride};
  }

  void pack() {
    if (size_ == 0) return;
    for (std::size_t r = 1; r < used_; ++r) {
      for (std::size_t s = r; s > 0 && dimensions_[s - 1].stride < dimensions_[s].stride; --s)
        std::swap(dimensions_[s - 1], dimensions_[s]);
    }
    std::size_t reach = 1;  // elements up to the end of the dimensions with smaller strides
    for (std::size_t r = used_; r-- > 0;) {
      const auto [extent, stride] = dimensions_[r];
      if (static_cast<std::ptrdiff_t>(stride) < static_cast<std::ptrdiff_t>(reach))
        throw configuration_error("a view with a stride of " + std::to_string(static_cast<std::ptrdiff_t>(stride)) +
                                  " cannot be packed (the dimensions with smaller strides reach " +
                                  std::to_string(reach) + " elements, so it may alias itself); copy its elements");
      reach += (extent - 1) * stride;
    }
    if (reach == size_) return;  // contiguous
    copy_ = std::make_unique<value_type[]>((std::is_const_v<T> ? 1 : 2) * size_);
    for_each([](T& element, value_type& copied) { copied = element; });
    for (std::size_t i = 0; !std::is_const_v<T> && i < size_; ++i) copy_[size_ + i] = copy_[i];
  }

  // Calls `f` with each element and its copy.
  template <class F>
  void for_each(const F& f) const {
    std::array<std::size_t, most> index{};
    value_type* copied = copy_.get();
    const dimension inner = dimensions_[used_ - 1];
    for (T* row = source_; copied != copy_.get() + size_;) {
      for (std::size_t i = 0; i < inner.extent; ++i) f(row[i * inner.stride], *copied++);
      for (std::size_t r = used_ - 1; r-- > 0;) {
        row += dimensions_[r].stride;
        if (++index[r] < dimensions_[r].extent) break;
        row -= std::exchange(index[r], 0) * dimensions_[r].stride;
      }
    }
  }

  T* source_;
  std::size_t size_ = 1;
  std::array<dimension, most> dimensions_;
  std::size_t used_ = 0;                // dimensions of more than one element, from the largest stride to the smallest
  std::unique_ptr<value_type[]> copy_;  // the elements, and unless they are const the elements as they were packed
};
/// Deduces the element type of a view.
template <strided_view V>
packed(const V&) -> packed<typename V::element_type>;
/// Deduces the element type of a matrix.
template <strided_matrix M>
packed(M&& matrix) -> packed<std::remove_reference_t<decltype(*matrix.data())>>;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
