// Reduce: all ranks' data is combined, and one rank receives the result.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out, class Op>
[[gnu::always_inline]] inline collective_call reduce_call(group& ranks, In& in, Out& out, Op op, int root,
                                                          const collective_options& call_options) {
  require_root(ranks, collective::reduce, root);
  if (ranks.rank() == root)
    require_size(ranks, collective::reduce, "output", std::ranges::size(out), std::ranges::size(in));
  return make_call(collective::reduce, in, out, std::ranges::size(in), call_options, root,
                   reduction_for<element_of<In>>(ranks, collective::reduce, std::move(op), call_options));
}
}  // namespace detail

/// Combines at the root: out[i] becomes op over all ranks' in[i]. `out` is used at the root alone, where it has the
/// length of `in` and may be the same buffer; elsewhere it may be empty. `in` has the same length at every rank and is
/// only read. Throws mismatch_error, timeout_error, peer_failure; configuration_error for a wrong root or size.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
[[gnu::always_inline]] inline void reduce(group& ranks, In&& in, Out&& out, Op op, int root,
                                          const collective_options& call_options = {}) {
  detail::run(ranks, detail::reduce_call(ranks, in, out, std::move(op), root, call_options));
}

/// Starts a reduce; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
[[gnu::always_inline]] inline work reduce_async(group& ranks, In&& in, Out&& out, Op op, int root,
                                                const collective_options& call_options = {}) {
  return detail::start(ranks, detail::reduce_call(ranks, in, out, std::move(op), root, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
