// Gather: every rank's data reaches one rank.
#pragma once

#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out>
[[gnu::always_inline]] inline collective_call gather_call(group& ranks, In& in, Out& out, int root,
                                                          const collective_options& call_options) {
  require_root(ranks, collective::gather, root);
  if (ranks.rank() == root) {
    require_size(ranks, collective::gather, "output", std::ranges::size(out),
                 std::ranges::size(in) * static_cast<std::size_t>(ranks.size()));
  }
  return make_call(collective::gather, in, out, std::ranges::size(in), call_options, root);
}
}  // namespace detail

/// Gathers at the root: `out` becomes all ranks' `in`, in the order of ranks. `in` has the same length at every rank;
/// `out`, size() times as long, is used at the root alone and may be empty elsewhere. Throws mismatch_error,
/// timeout_error, peer_failure; configuration_error for a wrong root or size.
template <element_range In, mutable_element_range Out>
[[gnu::always_inline]] inline void gather(group& ranks, In&& in, Out&& out, int root,
                                          const collective_options& call_options = {}) {
  detail::run(ranks, detail::gather_call(ranks, in, out, root, call_options));
}

/// Starts a gather; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out>
[[gnu::always_inline]] inline work gather_async(group& ranks, In&& in, Out&& out, int root,
                                                const collective_options& call_options = {}) {
  return detail::start(ranks, detail::gather_call(ranks, in, out, root, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
