// Scatter: each rank receives a piece from the root.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out>
[[gnu::always_inline]] inline collective_call scatter_call(group& ranks, In& in, Out& out, int root,
                                                           const collective_options& call_options) {
  require_root(ranks, collective::scatter, root);
  if (ranks.rank() == root) {
    require_size(ranks, collective::scatter, "input", std::ranges::size(in),
                 std::ranges::size(out) * static_cast<std::size_t>(ranks.size()));
  }
  return make_call(collective::scatter, in, out, std::ranges::size(out), call_options, root);
}
}  // namespace detail

/// Scatters from the root: `out` becomes this rank's piece of the root's `in`. `out` has the same length at every rank;
/// `in`, size() times as long, is used at the root alone and may be empty elsewhere. The inverse of gather. Throws
/// mismatch_error, timeout_error, peer_failure; configuration_error for a wrong root or size.
template <element_range In, mutable_element_range Out>
[[gnu::always_inline]] inline void scatter(group& ranks, In&& in, Out&& out, int root,
                                           const collective_options& call_options = {}) {
  detail::run(ranks, detail::scatter_call(ranks, in, out, root, call_options));
}

/// Starts a scatter; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out>
[[gnu::always_inline]] inline work scatter_async(group& ranks, In&& in, Out&& out, int root,
                                                 const collective_options& call_options = {}) {
  return detail::start(ranks, detail::scatter_call(ranks, in, out, root, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
