// The ring: every rank sends to the next rank and receives from the previous rank, a block at a time. Patarasuk and
// Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002: the bandwidth-optimal allreduce.
#pragma once

#include <muster/comm/algorithms/exchange_pieces.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Performs a reduce-scatter in N-1 steps, in place. Afterwards rank r holds block r combined over all ranks and
/// finished; the other blocks hold partial sums. Each block is combined along one path around the ring, so its order of
/// combination is the same for every rank.
inline task ring_reduce_scatter(collective_context& ctx, blocks data, const reduction& reduce) {
  const int n = ctx.size();
  const int me = ctx.rank();
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  for (int step = 1; step < n; ++step) {
    co_await exchange_pieces(ctx, next, data.at(me - step), previous, data.at(me - step - 1), reduce);
  }
  const auto mine = data.at(me);
  reduce.finish(mine.data(), mine.size(), n);
}

/// Performs an allgather in N-1 steps: rank r begins with block r, every rank ends with all blocks.
inline task ring_allgather(collective_context& ctx, blocks data) {
  const int n = ctx.size();
  const int me = ctx.rank();
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  for (int step = 0; step + 1 < n; ++step) {
    co_await ctx.exchange(next, data.at(me - step), previous, data.at(me - step - 1));
  }
}

/// Performs an allreduce in 2(N-1) steps, each with 1/N of the data.
inline task ring_allreduce(collective_context& ctx, blocks data, const reduction& reduce) {
  co_await ring_reduce_scatter(ctx, data, reduce);
  co_await ring_allgather(ctx, data);
}

}}}  // namespace muster::v0::detail
