// The parts that all collectives share: construction and start of a call.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include <muster/comm/block.hpp>
#include <muster/comm/group.hpp>
#include <muster/comm/reduction.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/error.hpp>

namespace muster { inline namespace v0 {

namespace detail {

// A compiler that refuses a call prints the condition that does not hold.
template <class R>
inline constexpr bool is_contiguous_memory = std::ranges::contiguous_range<R>&& std::ranges::sized_range<R>;
template <class R>
inline constexpr bool can_be_written = !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;
template <class R>
inline constexpr bool outlives_the_call = std::ranges::borrowed_range<R>;

}  // namespace detail

/// A std::span, std::vector, std::array or any other contiguous range of `transferable` elements (numbers, bytes,
/// structs without pointers) that a collective can read. A std::vector<bool> is not such a range: it has no bools in
/// memory.
template <class R>
concept element_range =
    detail::is_contiguous_memory<R> && transferable<std::remove_cv_t<std::ranges::range_value_t<R>>>;

/// An element_range that a collective can write.
template <class R>
concept mutable_element_range = element_range<R> && detail::can_be_written<R>;

/// An element_range that may be passed to an `_async` collective: the call must not outlive the memory, so a temporary
/// has to be a view.
template <class R>
concept lasting_element_range = element_range<R> && detail::outlives_the_call<R>;

/// A lasting_element_range that a collective can write.
template <class R>
concept lasting_mutable_range = mutable_element_range<R> && lasting_element_range<R>;

namespace detail {

template <class R>
using element_of = std::remove_cv_t<std::ranges::range_value_t<R>>;

template <class In, class Out>
collective_call make_call(collective kind, In& in, Out& out, std::size_t count, const collective_options& call_options,
                          int root = 0, reduction reduce = {}) {
  using T = element_of<In>;
  static_assert(std::same_as<T, element_of<Out>>, "both buffers hold the same type");
  return collective_call({.count = count,
                          .root = root,
                          .kind = kind,
                          .type = type_code_of<T>(),
                          .op = reduce.code(),
                          .algorithm = call_options.algorithm},
                         reinterpret_cast<const std::byte*>(std::ranges::data(in)),
                         reinterpret_cast<std::byte*>(std::ranges::data(out)), sizeof(T), std::move(reduce),
                         call_options.timeout);
}

// Throws configuration_error: the operation is not reproducible.
[[noreturn]] void refuse_reproducible(group& ranks, collective kind, operation op, dtype type);

// Returns the type-erased form of `op` for a call with these options.
template <class T, class Op>
reduction reduction_for(group& ranks, collective kind, Op op, const collective_options& call_options) {
  if (!call_options.reproducible) return reduction::of<T>(std::move(op));
  if constexpr (requires { Op::code; }) {
    constexpr bool adds = Op::code == operation::sum || Op::code == operation::mean;
    constexpr bool is_float =
        std::same_as<T, float16> || std::same_as<T, bfloat16> || std::same_as<T, float> || std::same_as<T, double>;
    constexpr bool is_logical = Op::code >= operation::logical_and && Op::code <= operation::logical_xor;
    const bool is_scan = kind == collective::scan || kind == collective::exclusive_scan;
    if constexpr (adds && is_float) {
      if (!is_scan) return reduction::reproducible<T>(Op::code == operation::mean);
    } else if constexpr (std::is_integral_v<T> || is_logical) {
      return reduction::of<T>(std::move(op));
    }
    refuse_reproducible(ranks, kind, Op::code, type_code_of<T>());
  } else {
    refuse_reproducible(ranks, kind, operation::user, type_code_of<T>());
  }
}

// Throws configuration_error with the text. With a group the refusal is recorded as in `group_state::refuse_call`;
// `ranks` is null for a communicator of devices, which has no record.
[[noreturn]] void refuse_arguments(group* ranks, const std::string& text);
// Throws configuration_error for a buffer of the wrong size; `ranks` as above.
[[noreturn]] void refuse_size(group* ranks, collective kind, std::string_view buffer_name, std::size_t elements,
                              std::size_t required);
// Throws configuration_error for a root that is not a rank of the group; `ranks` as above.
[[noreturn]] void refuse_root(group* ranks, collective kind, int root, int rank_count);

/// Throws configuration_error unless the buffer has the size that the other buffer requires.
inline void require_size(collective kind, std::string_view buffer_name, std::size_t elements, std::size_t required) {
  if (elements != required) refuse_size(nullptr, kind, buffer_name, elements, required);
}
/// Throws configuration_error unless the buffer has that size. The group does not fail. If this rank makes no other
/// call before it leaves, the ranks that wait for this rank in the collective fail with that reason.
inline void require_size(group& ranks, collective kind, std::string_view buffer_name, std::size_t elements,
                         std::size_t required) {
  if (elements != required) refuse_size(&ranks, kind, buffer_name, elements, required);
}

[[gnu::warning("the root of a collective is a rank, from 0")]] void negative_root();
/// Throws configuration_error unless root is a rank in a group with that size. If the compiler knows the root, the
/// compiler reports a negative root, as the C library's fortified functions do. Therefore all functions between the
/// user's call and this are always inlined.
[[gnu::always_inline]] inline void require_root(collective kind, int root, int rank_count, group* ranks = nullptr) {
  if (__builtin_constant_p(root) && root < 0) negative_root();
  if (root < 0 || root >= rank_count) refuse_root(ranks, kind, root, rank_count);
}
/// Throws configuration_error unless root is a rank of the group, which does not fail.
[[gnu::always_inline]] inline void require_root(group& ranks, collective kind, int root) {
  require_root(kind, root, ranks.size(), &ranks);
}

/// Runs a call and waits for the end. Throws the error of the call.
void run(group& ranks, collective_call&& call);
/// Starts a call and returns without waiting. The operation owns `division`, the uneven pieces of the call.
work start(group& ranks, collective_call&& call, std::unique_ptr<const uneven_pieces> division = nullptr);

}  // namespace detail
}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
