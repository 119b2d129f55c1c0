// Allreduce: the combination of all ranks' data reaches all.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out, class Op>
collective_call allreduce_call(group& ranks, In& in, Out& out, Op op, const options& how) {
  require_size(ranks, collective::allreduce, "output", std::ranges::size(out), std::ranges::size(in));
  return make_call(collective::allreduce, in, out, std::ranges::size(in), how, 0,
                   reduction::of<element_of<In>>(std::move(op)));
}
}  // namespace detail

/// data[i] becomes op over all ranks' data[i], with the same bits at every rank. The same length at every rank.
/// Throws mismatch_error, timeout_error, peer_failure; the content of `data` is not defined after an error.
template <mutable_element_range R, reduction_operation<detail::element_of<R>> Op>
void allreduce(group& ranks, R&& data, Op op, const options& how = {}) {
  detail::run(ranks, detail::allreduce_call(ranks, data, data, std::move(op), how));
}

/// The same out of place: `in` is only read, `out` is as long.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
void allreduce(group& ranks, In&& in, Out&& out, Op op, const options& how = {}) {
  detail::run(ranks, detail::allreduce_call(ranks, in, out, std::move(op), how));
}

/// One value: what op makes of all ranks' values.
template <reducible T, reduction_operation<T> Op>
requires(!std::ranges::range<T>) [[nodiscard]] T allreduce(group& ranks, T value, Op op, const options& how = {}) {
  if constexpr (std::same_as<Op, std::remove_cv_t<decltype(mean)>> &&
                (std::same_as<T, float> || std::same_as<T, double>)) {  // the sum of which may be infinite
    using wide = std::conditional_t<std::same_as<T, float>, double, long double>;
    wide sums = value;
    const std::span<wide> data(&sums, 1);
    detail::run(ranks, detail::allreduce_call(ranks, data, data, op, how));
    return static_cast<T>(sums);
  }
  const std::span<T> data(&value, 1);
  detail::run(ranks, detail::allreduce_call(ranks, data, data, std::move(op), how));
  return value;
}

/// Starts an allreduce in place; `data` is the call's until the work is done.
template <lasting_mutable_range R, reduction_operation<detail::element_of<R>> Op>
work allreduce_async(group& ranks, R&& data, Op op, const options& how = {}) {
  return detail::start(ranks, detail::allreduce_call(ranks, data, data, std::move(op), how));
}

/// Starts one out of place; both buffers are the call's until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
work allreduce_async(group& ranks, In&& in, Out&& out, Op op, const options& how = {}) {
  return detail::start(ranks, detail::allreduce_call(ranks, in, out, std::move(op), how));
}

}}  // namespace muster::v0
