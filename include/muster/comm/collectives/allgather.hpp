// Allgather: every rank's block reaches all.
#pragma once

#include <muster/comm/block.hpp>
#include <muster/comm/collectives/call.hpp>

namespace muster { inline namespace v0 {

namespace detail {
template <class In, class Out>
collective_call allgather_call(group& ranks, In& in, Out& out, const options& how) {
  const std::size_t total = std::ranges::size(out);
  require_size(ranks, collective::allgather, "input", std::ranges::size(in),
               block_of(total, ranks.rank(), ranks.size()).count);
  return make_call(collective::allgather, in, out, total, how);
}
}  // namespace detail

/// Block r of `out` becomes rank r's `in`. `out` has the same length n at every rank and `in` has that of this rank's
/// block, `block_of(n, rank, size).count`: n / size where that divides, and one more here and there where it does not.
/// `in` may be this rank's block of `out`.
/// Throws mismatch_error, timeout_error, peer_failure; configuration_error for a wrong size.
template <element_range In, mutable_element_range Out>
void allgather(group& ranks, In&& in, Out&& out, const options& how = {}) {
  detail::run(ranks, detail::allgather_call(ranks, in, out, how));
}

/// Starts an allgather; the buffers are the call's until the work is done.
template <lasting_element_range In, lasting_mutable_range Out>
work allgather_async(group& ranks, In&& in, Out&& out, const options& how = {}) {
  return detail::start(ranks, detail::allgather_call(ranks, in, out, how));
}

}}  // namespace muster::v0
