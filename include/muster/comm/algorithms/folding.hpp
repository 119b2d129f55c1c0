// Reductions that combine the elements of all ranks at once, for operations whose result on some of the ranks has no
// meaning. A direct allreduce does too.
#pragma once

#include <cstring>

#include <muster/comm/algorithms/direct.hpp>
#include <muster/comm/algorithms/recursive_doubling.hpp>
#include <muster/comm/algorithms/tree.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Largest size in bytes of the data of all ranks that a rank receives, so that an allreduce has few rounds.
inline constexpr std::size_t gathered_up_to = 65536;

/// Folds equal pieces of all ranks, which are one after another in `all`, except the piece of rank `own`.
inline void fold_pieces(collective_context& ctx, const rank_pieces& all, const std::byte* own, std::byte* out,
                        const reduction& reduce) {
  if (all.piece_bytes == 0) return;
  pool_array<const std::byte*> inputs(ctx.pool(), static_cast<std::size_t>(ctx.size()));
  for (int rank = 0; rank < ctx.size(); ++rank)
    inputs[static_cast<std::size_t>(rank)] = rank == ctx.rank() ? own : all.at(rank).data();
  std::byte* const outputs[] = {out};
  reduce.fold(outputs, {&inputs[0], inputs.size()}, all.piece_bytes);
}

/// Folds block p of every rank's `in` at rank p, into `out`.
inline task folding_reduce_scatter(collective_context& ctx, blocks in, std::byte* out, const reduction& reduce) {
  const int n = ctx.size();
  const int me = ctx.rank();
  const auto mine = in.at(me);
  const rank_pieces all{ctx.scratch(mine.size() * static_cast<std::size_t>(n)), mine.size()};
  for (int step = 1; step < n; ++step) {
    const int destination = (me + step) % n;
    const int source = (me + n - step) % n;
    co_await ctx.exchange(destination, in.at(destination), source, all.at(source));
  }
  fold_pieces(ctx, all, mine.data(), out, reduce);
}

/// Performs a reduce: every rank folds one block and sends it to the root.
inline task folding_reduce(collective_context& ctx, const collective_call& call) {
  const auto n = static_cast<std::size_t>(ctx.size());
  const blocks in{const_cast<std::byte*>(call.in), call.count, call.element_size, ctx.size()};
  const auto mine = in.at(ctx.rank());
  std::byte* const folded = ctx.scratch(mine.size());
  co_await folding_reduce_scatter(ctx, in, folded, call.reduce);
  pool_array<std::size_t> offsets(ctx.pool(), n + 1);
  for (std::size_t rank = 0; rank < n; ++rank) offsets[rank] = in.elements(static_cast<int>(rank)).first;
  offsets[n] = call.count;
  co_await direct_gather(ctx, {folded, mine.size()}, {call.out, 0, &offsets[0], call.element_size}, call.root);
}

/// Performs an allreduce: every rank receives the data of all ranks, and folds all of it.
inline task gathering_allreduce(collective_context& ctx, const collective_call& call) {
  const auto n = static_cast<std::size_t>(ctx.size());
  const std::size_t bytes = call.count * call.element_size;
  const rank_pieces all{ctx.scratch(bytes * n), bytes};
  if (bytes > 0) std::memcpy(all.at(ctx.rank()).data(), call.in, bytes);
  co_await recursive_doubling_allgather(ctx, {all.data, call.count * n, call.element_size, ctx.size()});
  fold_pieces(ctx, all, all.at(ctx.rank()).data(), call.out, call.reduce);
}

}}}  // namespace muster::v0::detail
