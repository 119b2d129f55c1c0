// Halving-doubling: reduce-scatter by recursive halving, allgather by recursive doubling. The bandwidth of a ring in
// log2 N rounds (Rabenseifner 2004, https://doi.org/10.1007/978-3-540-24685-5_1).
#pragma once

#include <muster/comm/algorithms/recursive_doubling.hpp>

namespace muster { inline namespace v0 { namespace detail {

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
    co_await exchange_pieces(f, partner, lower ? high : low, partner, lower ? low : high, how);
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
    co_await f.exchange(partner, data.between(mine, mine + width), partner, data.between(theirs, theirs + width));
  }
}

inline task halving_doubling_allreduce(executor& f, std::byte* data, std::size_t count, const reduction& how) {
  const folding fold(f.rank(), f.size());
  const std::span whole(data, count * how.element_size());
  if (fold.lends()) {
    co_await f.send_to(fold.neighbour(), whole);
    co_await f.receive_from(fold.neighbour(), whole);
    co_return;
  }
  if (fold.borrows()) co_await f.receive_from(fold.neighbour(), whole, &how);
  const blocks parts{data, count, how.element_size(), fold.power};
  co_await halving_reduce_scatter(f, fold, parts, how);
  const auto mine = parts.at(fold.number());
  how.finish(mine.data(), mine.size(), f.size());
  co_await doubling_allgather(f, fold, parts);
  if (fold.borrows()) co_await f.send_to(fold.neighbour(), whole);
}

}}}  // namespace muster::v0::detail
