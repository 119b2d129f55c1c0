// Halving-doubling: reduce-scatter by recursive halving, allgather by recursive doubling. The bandwidth of a ring in
// log2 N rounds (Rabenseifner 2004, https://doi.org/10.1007/978-3-540-24685-5_1).
#pragma once

#include <muster/comm/algorithms/fold.hpp>

namespace muster::inline v0::detail {

/// Afterwards the working rank with number v holds block v of `fold.power` combined over all ranks, unfinished. Halves
/// are exchanged with the farthest partner first; each block is combined on one path.
inline task halving_reduce_scatter(executor& f, folding fold, blocks data, const reduction& how) {
  int first = 0;
  for (int width = fold.power / 2; width > 0; width /= 2) {
    const int number = fold.number();
    const int partner = fold.rank_of(number ^ width);
    const bool lower = (number & width) == 0;
    const auto low = data.between(first, first + width);
    const auto high = data.between(first + width, first + 2 * width);
    const auto keep = lower ? low : high;
    const auto give = lower ? high : low;
    request receiving;
    request sending;
    f.receive_combine(receiving, partner, keep.data(), keep.size(), how);
    f.send(sending, partner, give.data(), give.size());
    co_await f.done(receiving);
    co_await f.done(sending);
    if (!lower) first += width;
  }
}

/// The inverse: working rank v begins with block v, all end with all.
inline task doubling_allgather(executor& f, folding fold, blocks data) {
  for (int width = 1; width < fold.power; width *= 2) {
    const int number = fold.number();
    const int mine = number / width * width;
    const int theirs = mine ^ width;
    const int partner = fold.rank_of(number ^ width);
    const auto in = data.between(theirs, theirs + width);
    const auto out = data.between(mine, mine + width);
    request receiving;
    request sending;
    f.receive(receiving, partner, in.data(), in.size());
    f.send(sending, partner, out.data(), out.size());
    co_await f.done(receiving);
    co_await f.done(sending);
  }
}

inline task halving_doubling_allreduce(executor& f, std::byte* data, std::size_t count, const reduction& how) {
  const folding fold(f.rank(), f.size());
  const std::size_t bytes = count * how.element_size();
  if (fold.lends() || fold.borrows()) co_await fold_in(f, fold, data, bytes, how);
  if (!fold.lends()) {
    const blocks parts{data, count, how.element_size(), fold.power};
    co_await halving_reduce_scatter(f, fold, parts, how);
    const auto mine = parts.at(fold.number());
    how.finish(mine.data(), mine.size(), f.size());
    co_await doubling_allgather(f, fold, parts);
  }
  if (fold.lends() || fold.borrows()) co_await fold_out(f, fold, data, bytes);
}

}  // namespace muster::inline v0::detail
