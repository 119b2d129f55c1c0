// Reduce-scatter: each rank receives one block of the combination.
#pragma once

#include <muster/comm/block.hpp>
#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out, class Op>
collective_call reduce_scatter_call(group& ranks, In& in, Out& out, Op op, const collective_options& call_options) {
  const std::size_t total = std::ranges::size(in);
  require_size(ranks, collective::reduce_scatter, "output", std::ranges::size(out),
               block_of(total, ranks.rank(), ranks.size()).count);
  return make_call(collective::reduce_scatter, in, out, total, call_options, 0,
                   reduction_for<element_of<In>>(ranks, collective::reduce_scatter, std::move(op), call_options));
}
}  // namespace detail

/// Combines and scatters: `out` becomes this rank's block of op over all ranks' `in`. `in` has the same length n at
/// every rank, is only read and does not overlap `out`, which has `block_of(n, rank, size).count` elements. The inverse
/// of allgather. Throws mismatch_error, timeout_error, peer_failure; configuration_error for a wrong size.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
void reduce_scatter(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  detail::run(ranks, detail::reduce_scatter_call(ranks, in, out, std::move(op), call_options));
}

/// Starts a reduce-scatter; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
work reduce_scatter_async(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::reduce_scatter_call(ranks, in, out, std::move(op), call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
