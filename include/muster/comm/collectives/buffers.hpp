// Allreduce of several buffers as one.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>

#include <muster/comm/collectives/uneven.hpp>

namespace muster { inline namespace v0 {

namespace detail {
/// Completes an allreduce of the buffers: total count and digest of the counts.
[[nodiscard]] uneven_call pack(group& ranks, collective_call call, std::vector<std::span<std::byte>>&& buffers);

template <class T, class Op>
uneven_call allreduce_buffers_call(group& ranks, std::span<const std::span<T>> buffers, Op op,
                                   const collective_options& call_options) {
  std::vector<std::span<std::byte>> bytes;
  bytes.reserve(buffers.size());
  for (const auto buffer : buffers) bytes.push_back(std::as_writable_bytes(buffer));
  const std::span<T> none;
  return pack(ranks,
              make_call(collective::allreduce, none, none, 0, call_options, 0,
                        reduction_for<T>(ranks, collective::allreduce, std::move(op), call_options)),
              std::move(bytes));
}
}  // namespace detail

/// Combines all ranks' data in several buffers, in one allreduce of all their elements: the time of a call, not of a
/// call for each buffer. For many small buffers: the call copies them. The numbers of elements are the same at every
/// rank. The buffers do not overlap. Throws as the allreduce of a buffer.
template <reducible T, reduction_operation<T> Op>
void allreduce(group& ranks, std::span<const std::span<T>> buffers, Op op,
               const collective_options& call_options = {}) {
  detail::run(ranks, detail::allreduce_buffers_call(ranks, buffers, std::move(op), call_options));
}

/// Does the same for a list: `allreduce<int>(group, {a, b, c}, sum)`. A list of floats or doubles needs no type.
template <reducible T, reduction_operation<T> Op>
void allreduce(group& ranks, std::initializer_list<std::span<T>> buffers, Op op,
               const collective_options& call_options = {}) {
  allreduce(ranks, std::span<const std::span<T>>(buffers.begin(), buffers.size()), std::move(op), call_options);
}
template <reduction_operation<float> Op>
void allreduce(group& ranks, std::initializer_list<std::span<float>> buffers, Op op,
               const collective_options& call_options = {}) {
  allreduce<float>(ranks, buffers, std::move(op), call_options);
}
template <reduction_operation<double> Op>
void allreduce(group& ranks, std::initializer_list<std::span<double>> buffers, Op op,
               const collective_options& call_options = {}) {
  allreduce<double>(ranks, buffers, std::move(op), call_options);
}

/// Starts an allreduce of several buffers; the call owns the buffers until the work is done. The span may be temporary.
template <reducible T, reduction_operation<T> Op>
work allreduce_async(group& ranks, std::span<const std::span<T>> buffers, Op op,
                     const collective_options& call_options = {}) {
  return detail::start(ranks, detail::allreduce_buffers_call(ranks, buffers, std::move(op), call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
