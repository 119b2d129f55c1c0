// What the collectives have in common: how a call is made, and started.
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

/// A std::span, std::vector, std::array or any other contiguous range of `transferable` elements (numbers, bytes,
/// structs without pointers) that a collective can read.
template <class R>
concept element_range = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
    transferable<std::remove_cv_t<std::ranges::range_value_t<R>>>;

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

template <class R>
const std::byte* input(R&& range) {
  return reinterpret_cast<const std::byte*>(std::ranges::data(range));
}

template <class R>
std::byte* output(R&& range) {
  return reinterpret_cast<std::byte*>(std::ranges::data(range));
}

template <transferable T>
collective_call make_call(collective kind, const std::byte* in, std::byte* out, std::size_t count, const options& how,
                          int root = 0, reduction reduce = {}) {
  return collective_call(
      {.count = count, .root = root, .kind = kind, .type = type_code_of<T>(), .op = reduce.code(), .how = how.how}, in,
      out, sizeof(T), std::move(reduce), how.timeout);
}

/// Throws configuration_error unless the buffer has the size that goes with the other.
void require_size(collective kind, std::string_view which, std::size_t is, std::size_t must_be);
/// Throws configuration_error unless root is one of so many ranks.
void require_root(collective kind, int root, int ranks);

/// Runs a call to its end.
void run(group& ranks, collective_call&& what);
/// Starts a call.
work start(group& ranks, collective_call&& what);

}  // namespace detail
}  // namespace muster::inline v0
