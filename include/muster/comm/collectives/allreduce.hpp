// Allreduce: all ranks' data is combined, and every rank receives the result.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out, class Op>
collective_call allreduce_call(group& ranks, In& in, Out& out, Op op, const collective_options& call_options) {
  require_size(ranks, collective::allreduce, "output", std::ranges::size(out), std::ranges::size(in));
  return make_call(collective::allreduce, in, out, std::ranges::size(in), call_options, 0,
                   reduction_for<element_of<In>>(ranks, collective::allreduce, std::move(op), call_options));
}
}  // namespace detail

/// Combines all ranks' data: data[i] becomes op over all ranks' data[i], with the same bits at every rank. The length
/// is the same at every rank. Throws mismatch_error, timeout_error, peer_failure; the content of `data` is not defined
/// after an error.
template <mutable_element_range R, reduction_operation<detail::element_of<R>> Op>
void allreduce(group& ranks, R&& data, Op op, const collective_options& call_options = {}) {
  detail::run(ranks, detail::allreduce_call(ranks, data, data, std::move(op), call_options));
}

/// Performs an allreduce out of place: `in` is only read, and `out` has the same length.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
void allreduce(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  detail::run(ranks, detail::allreduce_call(ranks, in, out, std::move(op), call_options));
}

/// Returns op over all ranks' values, for a single value.
template <reducible T, reduction_operation<T> Op>
requires(!std::ranges::range<T>) [[nodiscard]] T
    allreduce(group& ranks, T value, Op op, const collective_options& call_options = {}) {
  if constexpr (std::same_as<Op, std::remove_cv_t<decltype(mean)>> &&
                // their sum may be infinite where the mean is not
                (std::same_as<T, float> || std::same_as<T, double>)) {
    if (!call_options.reproducible) {
      using wide = std::conditional_t<std::same_as<T, float>, double, long double>;
      wide sums = value;
      const std::span<wide> data(&sums, 1);
      detail::run(ranks, detail::allreduce_call(ranks, data, data, op, call_options));
      return static_cast<T>(sums);
    }
  }
  const std::span<T> data(&value, 1);
  detail::run(ranks, detail::allreduce_call(ranks, data, data, std::move(op), call_options));
  return value;
}

/// Starts an allreduce in place; the call owns `data` until the work is done.
template <lasting_mutable_range R, reduction_operation<detail::element_of<R>> Op>
work allreduce_async(group& ranks, R&& data, Op op, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::allreduce_call(ranks, data, data, std::move(op), call_options));
}

/// Starts an allreduce out of place; the call owns both buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
work allreduce_async(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::allreduce_call(ranks, in, out, std::move(op), call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
