// Halving-doubling: reduce-scatter by recursive halving, allgather by recursive doubling. The bandwidth of a ring in
// log2 N rounds (Rabenseifner 2004, https://doi.org/10.1007/978-3-540-24685-5_1).
#pragma once

#include <muster/comm/algorithms/recursive_doubling.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Performs the reduce-scatter. Afterwards the working rank with number v holds block v of `fold.power` blocks,
/// combined over all ranks and unfinished. Halves are exchanged with the farthest partner first. Each block is
/// completed at a single rank, so all ranks get the same bits.
inline task halving_reduce_scatter(collective_context& ctx, folding fold, blocks data, const reduction& reduce) {
  int first = 0;
  for (int width = fold.working_ranks / 2; width > 0; width /= 2) {
    const int number = fold.working_number();
    const int partner = fold.rank_of(number ^ width);
    const bool lower = (number & width) == 0;
    const auto low = data.between(first, first + width);
    const auto high = data.between(first + width, first + 2 * width);
    co_await exchange_pieces(ctx, partner, lower ? high : low, partner, lower ? low : high, reduce);
    if (!lower) first += width;
  }
}

/// Performs the allgather, the inverse: working rank v begins with block v, and all working ranks end with all blocks.
inline task doubling_allgather(collective_context& ctx, folding fold, blocks data) {
  for (int width = 1; width < fold.working_ranks; width *= 2) {
    const int number = fold.working_number();
    const int mine = number / width * width;
    const int theirs = mine ^ width;
    const int partner = fold.rank_of(number ^ width);
    co_await ctx.exchange(partner, data.between(mine, mine + width), partner, data.between(theirs, theirs + width));
  }
}

inline task halving_doubling_allreduce(collective_context& ctx, std::byte* data, std::size_t count,
                                       const reduction& reduce) {
  const folding fold(ctx.rank(), ctx.size());
  const std::span all(data, count * reduce.element_size());
  if (fold.lends()) {
    co_await ctx.send_to(fold.neighbour(), all);
    co_await ctx.receive_from(fold.neighbour(), all);
    co_return;
  }
  if (fold.borrows()) co_await ctx.receive_from(fold.neighbour(), all, &reduce);
  const blocks divided{data, count, reduce.element_size(), fold.working_ranks};
  co_await halving_reduce_scatter(ctx, fold, divided, reduce);
  const auto mine = divided.at(fold.working_number());
  reduce.finish(mine.data(), mine.size(), ctx.size());
  co_await doubling_allgather(ctx, fold, divided);
  if (fold.borrows()) co_await ctx.send_to(fold.neighbour(), all);
}

}}}  // namespace muster::v0::detail
