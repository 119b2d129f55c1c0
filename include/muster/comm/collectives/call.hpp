// What the collectives have in common: a call with its types erased, and how it is started.
#pragma once

#include <concepts>
#include <cstddef>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <muster/comm/group.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/error.hpp>

namespace muster::inline v0 {

/// A std::span, std::vector, std::array or any other contiguous range of elements that a collective can read.
template <class R>
concept element_range = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    element<std::remove_cv_t<std::ranges::range_value_t<R>>>;

/// An element_range that a collective can write.
template <class R>
concept mutable_element_range =
    element_range<R> && !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

/// A mutable_element_range that may be given to an `_async` collective: the call must not outlive the memory, so a
/// temporary has to be a view.
template <class R>
concept lasting_element_range = element_range<R> && std::ranges::borrowed_range<R>;

namespace detail {

template <class R>
using element_of = std::remove_cv_t<std::ranges::range_value_t<R>>;

/// One call of a collective: everything but its types' names.
struct call {
  call() = default;
  // Not an aggregate: that would be cleared as a whole first, a tenth of the shortest call.
  call(collective what, const std::byte* from, std::byte* to, std::size_t elements, std::size_t size, dtype element,
       int from_or_to, reduction by, const options& asked)
      : kind(what),
        in(from),
        out(to),
        count(elements),
        element_size(size),
        type(element),
        root(from_or_to),
        reduce(std::move(by)),
        how(asked) {}

  collective kind = collective::none;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;  ///< equal to `in` for a call in place
  std::size_t count = 0;     ///< what ranks compare; see the collective
  std::size_t element_size = 1;
  dtype type = dtype::none;
  int root = 0;
  reduction reduce;
  options how;
};

template <class R>
const std::byte* input(R&& range) {
  return reinterpret_cast<const std::byte*>(std::ranges::data(range));
}

template <class R>
std::byte* output(R&& range) {
  return reinterpret_cast<std::byte*>(std::ranges::data(range));
}

template <element T>
call make_call(collective kind, const std::byte* in, std::byte* out, std::size_t count, const options& how,
               int root = 0, reduction reduce = {}) {
  return call(kind, in, out, count, sizeof(T), dtype_of<T>(), root, std::move(reduce), how);
}

/// Throws configuration_error unless the buffer has the size that goes with the other.
void require_size(collective kind, std::string_view which, std::size_t is, std::size_t must_be);
/// Throws configuration_error unless root is a rank of the group.
void require_root(const group& ranks, collective kind, int root);

/// Runs a call to its end.
void run(group& ranks, call&& what);
/// Starts a call.
work start(group& ranks, call&& what);

}  // namespace detail
}  // namespace muster::inline v0
