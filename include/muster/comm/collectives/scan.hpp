// Scan: each rank gets the combination of the ranks up to itself, or before itself.
#pragma once

#include <concepts>
#include <type_traits>

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
// A mean over some of the ranks would be divided by the number of all ranks.
template <class Op>
inline constexpr bool can_be_scanned = !std::same_as<std::remove_cvref_t<Op>, std::remove_cv_t<decltype(mean)>>;

template <class In, class Out, class Op>
collective_call scan_call(group& ranks, collective kind, In& in, Out& out, Op op,
                          const collective_options& call_options) {
  require_size(ranks, kind, "output", std::ranges::size(out), std::ranges::size(in));
  return make_call(kind, in, out, std::ranges::size(in), call_options, 0,
                   reduction_for<element_of<In>>(ranks, kind, std::move(op), call_options));
}
}  // namespace detail

/// Combines the data of the ranks up to this rank: out[i] becomes op over the in[i] of the ranks 0 to rank(), in the
/// order of ranks. `out` has the length of `in`, which is the same at every rank, and may be the same buffer. All
/// operations but `mean`. Throws mismatch_error, timeout_error, peer_failure; configuration_error for a wrong size.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
requires detail::can_be_scanned<Op>
void scan(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  detail::run(ranks, detail::scan_call(ranks, collective::scan, in, out, std::move(op), call_options));
}

/// Starts a scan; the call owns both buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
requires detail::can_be_scanned<Op> work scan_async(group& ranks, In&& in, Out&& out, Op op,
                                                    const collective_options& call_options = {}) {
  return detail::start(ranks, detail::scan_call(ranks, collective::scan, in, out, std::move(op), call_options));
}

/// Combines the data of the ranks before this rank, as `scan` without this rank. Does not write `out` at rank 0.
template <element_range In, mutable_element_range Out, reduction_operation<detail::element_of<In>> Op>
requires detail::can_be_scanned<Op>
void exclusive_scan(group& ranks, In&& in, Out&& out, Op op, const collective_options& call_options = {}) {
  detail::run(ranks, detail::scan_call(ranks, collective::exclusive_scan, in, out, std::move(op), call_options));
}

/// Starts an exclusive scan; the call owns both buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out, reduction_operation<detail::element_of<In>> Op>
requires detail::can_be_scanned<Op> work exclusive_scan_async(group& ranks, In&& in, Out&& out, Op op,
                                                              const collective_options& call_options = {}) {
  return detail::start(ranks,
                       detail::scan_call(ranks, collective::exclusive_scan, in, out, std::move(op), call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
