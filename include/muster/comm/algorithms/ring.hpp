// The ring: every rank sends to the next and receives from the one before, a block at a time.
// Patarasuk and Yuan 2009, https://doi.org/10.1016/j.jpdc.2008.09.002: the bandwidth-optimal allreduce.
#pragma once

#include <muster/comm/algorithms/exchange.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// N-1 steps, in place. Afterwards rank r holds block r combined over all ranks and finished; the other blocks hold
/// parts of sums. Each block is combined along one path around the ring, so its order of combination is the same for
/// every rank.
inline task ring_reduce_scatter(executor& f, blocks data, const reduction& how) {
  const int n = f.size();
  const int me = f.rank();
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  for (int step = 1; step < n; ++step) {
    co_await exchange_pieces(f, next, data.at(me - step), previous, data.at(me - step - 1), how);
  }
  const auto mine = data.at(me);
  how.finish(mine.data(), mine.size(), n);
}

/// N-1 steps: rank r begins with block r, every rank ends with all.
inline task ring_allgather(executor& f, blocks data) {
  const int n = f.size();
  const int me = f.rank();
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;
  for (int step = 0; step + 1 < n; ++step) {
    co_await f.exchange(next, data.at(me - step), previous, data.at(me - step - 1));
  }
}

/// Exactly 2(N-1) steps, each of 1/N of the data.
inline task ring_allreduce(executor& f, blocks data, const reduction& how) {
  co_await ring_reduce_scatter(f, data, how);
  co_await ring_allgather(f, data);
}

}}}  // namespace muster::v0::detail
