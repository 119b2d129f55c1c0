// Allgather: every rank's block reaches all ranks.
#pragma once

#include <muster/comm/block.hpp>
#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out>
collective_call allgather_call(group& ranks, In& in, Out& out, const collective_options& call_options) {
  const std::size_t total = std::ranges::size(out);
  require_size(ranks, collective::allgather, "input", std::ranges::size(in),
               block_of(total, ranks.rank(), ranks.size()).count);
  return make_call(collective::allgather, in, out, total, call_options);
}
}  // namespace detail

/// Gathers at all ranks: block r of `out` becomes rank r's `in`. `out` has the same length n at every rank. `in` has
/// this rank's block length, `block_of(n, rank, size).count`: n / size, and in some blocks one more if size does not
/// divide n. `in` may be this rank's block of `out`. Throws mismatch_error, timeout_error, peer_failure;
/// configuration_error for a wrong size.
template <element_range In, mutable_element_range Out>
void allgather(group& ranks, In&& in, Out&& out, const collective_options& call_options = {}) {
  detail::run(ranks, detail::allgather_call(ranks, in, out, call_options));
}

/// Starts an allgather; the call owns the buffers until the work is done.
template <lasting_element_range In, lasting_mutable_range Out>
work allgather_async(group& ranks, In&& in, Out&& out, const collective_options& call_options = {}) {
  return detail::start(ranks, detail::allgather_call(ranks, in, out, call_options));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
