// Reduce: the combination of all ranks' data reaches one.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster::inline v0 {

namespace detail {
template <class In, class Out, class Op>
collective_call reduce_call(group& ranks, In& in, Out& out, Op op, int root, const options& how) {
  using T = element_of<In>;
  static_assert(std::same_as<T, element_of<Out>>, "reduce: both buffers hold the same type");
  require_root(collective::reduce, root, ranks.size());
  if (ranks.rank() == root) require_size(collective::reduce, "output", std::ranges::size(out), std::ranges::size(in));
  return make_call<T>(collective::reduce, input(in), output(out), std::ranges::size(in), how, root,
                      reduction::of<T>(std::move(op)));
}
}  // namespace detail

/// out[i] at the root becomes op over all ranks' in[i]. `out` is used at the root alone, where it is as long as `in`
/// and may be the same buffer; elsewhere it may be empty. `in` has the same length at every rank and is only read.
/// Throws mismatch_error, timeout_error, peer_failure; configuration_error for a wrong root or size.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
[[gnu::always_inline]] inline void reduce(group& ranks, In&& in, Out&& out, Op op, int root, const options& how = {}) {
  detail::check_constant_root(root);
  detail::run(ranks, detail::reduce_call(ranks, in, out, std::move(op), root, how));
}

/// Starts a reduce; the buffers are the call's until the work is done.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
requires lasting_element_range<In> && lasting_element_range<Out>
[[gnu::always_inline]] inline work reduce_async(group& ranks, In&& in, Out&& out, Op op, int root,
                                                const options& how = {}) {
  detail::check_constant_root(root);
  return detail::start(ranks, detail::reduce_call(ranks, in, out, std::move(op), root, how));
}

}  // namespace muster::inline v0
