// Recursive doubling: at step k ranks 2^k apart exchange all their data. The fewest rounds, for small data.
#pragma once

#include <algorithm>
#include <bit>

#include <muster/comm/algorithms/exchange_pieces.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The mapping that lets algorithms for powers of two work for any number of ranks. Each surplus rank lends its data to
/// a neighbour, which combines the data with its own, and receives the result from the neighbour (Thakur, Rabenseifner
/// and Gropp 2005, https://doi.org/10.1177/1094342005051521, section 4.5). The first 2 * surplus_ranks ranks form
/// pairs, and the odd rank of a pair works for both; the working ranks are numbered 0 .. working_ranks - 1 without
/// gaps.
struct folding {
  folding(int rank_in, int rank_count)
      : rank(rank_in),
        working_ranks(static_cast<int>(std::bit_floor(static_cast<unsigned>(rank_count)))),
        surplus_ranks(rank_count - working_ranks) {}
  [[nodiscard]] bool lends() const { return rank < 2 * surplus_ranks && rank % 2 == 0; }
  [[nodiscard]] bool borrows() const { return rank < 2 * surplus_ranks && rank % 2 == 1; }
  [[nodiscard]] int neighbour() const { return rank ^ 1; }  // the partner of a rank that lends or borrows
  /// Returns the number of a rank that does not lend.
  [[nodiscard]] int working_number() const { return rank < 2 * surplus_ranks ? rank / 2 : rank - surplus_ranks; }
  /// Returns the rank with the number `n`.
  [[nodiscard]] int rank_of(int n) const { return n < surplus_ranks ? 2 * n + 1 : n + surplus_ranks; }

  int rank;
  int working_ranks;  ///< number of working ranks: the largest power of two that is not above the size
  int surplus_ranks;  ///< number of surplus ranks
};

/// Performs an allreduce in log2 N rounds with the whole buffer, and one round more before and after for surplus ranks.
/// Partners combine in the order of their ranks, so both get the same bits, and by induction all ranks do.
inline task recursive_doubling_allreduce(collective_context& ctx, std::byte* data, std::size_t bytes,
                                         const reduction& reduce) {
  const folding fold(ctx.rank(), ctx.size());
  if (fold.lends()) {
    co_await ctx.send_to(fold.neighbour(), {data, bytes});
    co_await ctx.receive_from(fold.neighbour(), {data, bytes});
    co_return;
  }
  if (fold.borrows()) co_await ctx.receive_from(fold.neighbour(), {data, bytes}, &reduce);
  for (int distance = 1; distance < fold.working_ranks; distance *= 2)
    co_await exchange_combine(ctx, fold.rank_of(fold.working_number() ^ distance), data, bytes, reduce);
  reduce.finish(data, bytes, ctx.size());
  if (fold.borrows()) co_await ctx.send_to(fold.neighbour(), {data, bytes});
}

/// Performs Bruck's allgather (1997, https://doi.org/10.1109/71.642949) on balanced blocks. At step k a rank sends 2^k
/// blocks starting with its own, in at most two runs because of the wrap-around, so that the result needs no rotation
/// and any N works.
inline task recursive_doubling_allgather(collective_context& ctx, blocks data) {
  const int n = ctx.size();
  const int me = ctx.rank();
  for (int held = 1; held < n; held *= 2) {
    const int moved = held < n - held ? held : n - held;
    const int destination = (me - held + n) % n;
    const int source = (me + held) % n;
    const int out_cut = me + moved > n ? n - me : moved;  // blocks before the wrap-around
    const int in_cut = source + moved > n ? n - source : moved;
    request receiving[2];
    request sending[2];
    const auto in = data.between(source, source + in_cut);
    const auto out = data.between(me, me + out_cut);
    ctx.receive(receiving[0], source, in.data(), in.size());
    ctx.send(sending[0], destination, out.data(), out.size());
    if (in_cut < moved) {
      const auto wrapped = data.between(0, moved - in_cut);
      ctx.receive(receiving[1], source, wrapped.data(), wrapped.size());
    }
    if (out_cut < moved) {
      const auto wrapped = data.between(0, moved - out_cut);
      ctx.send(sending[1], destination, wrapped.data(), wrapped.size());
    }
    co_await ctx.done(receiving[0]);
    if (in_cut < moved) co_await ctx.done(receiving[1]);
    co_await ctx.done(sending[0]);
    if (out_cut < moved) co_await ctx.done(sending[1]);
  }
}

/// Performs the dissemination barrier (Hensgen, Finkel and Manber 1988): at step k rank r notifies rank r + 2^k; any N
/// works.
inline task dissemination_barrier(collective_context& ctx) {
  const int n = ctx.size();
  for (int distance = 1; distance < n; distance *= 2)
    co_await ctx.exchange((ctx.rank() + distance) % n, {}, (ctx.rank() + n - distance) % n, {});
}

}}}  // namespace muster::v0::detail
