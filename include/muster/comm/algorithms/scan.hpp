// Scans: each rank gets the combination of the ranks before it.
#pragma once

#include <cstring>

#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Performs a scan or an exclusive_scan in log2 N rounds, as Hillis and Steele (1986,
/// https://doi.org/10.1145/7902.7903): at step k a rank sends the combination of 2^k ranks up to itself to the rank 2^k
/// above. All combinations are in the order of ranks. An exclusive_scan does not write the output of rank 0.
inline task doubling_scan(collective_context& ctx, const collective_call& call) {
  const int n = ctx.size();
  const int me = ctx.rank();
  const bool includes_own = call.kind == collective::scan;
  const std::size_t bytes = call.count * call.element_size;
  std::byte* const covered = ctx.scratch(bytes);  // the combination of the ranks that this rank has covered so far
  std::byte* const incoming = ctx.scratch(bytes);
  if (bytes > 0) std::memcpy(covered, call.in, bytes);
  if (includes_own && bytes > 0 && call.in != call.out) std::memcpy(call.out, call.in, bytes);
  for (int distance = 1; distance < n; distance *= 2) {
    request receiving;
    request sending;
    const bool receives = me >= distance;
    const bool sends = me + distance < n;
    if (receives) ctx.receive(receiving, me - distance, incoming, bytes);
    if (sends) ctx.send(sending, me + distance, covered, bytes);
    if (receives) co_await ctx.done(receiving);
    if (sends) co_await ctx.done(sending);
    if (!receives || bytes == 0) continue;
    if (!includes_own && distance == 1)
      std::memcpy(call.out, incoming, bytes);
    else
      call.reduce.combine(call.out, incoming, bytes, true);
    call.reduce.combine(covered, incoming, bytes, true);
  }
}

}}}  // namespace muster::v0::detail
