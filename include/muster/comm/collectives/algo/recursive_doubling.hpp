// Recursive doubling: at step k ranks 2^k apart exchange all they have. The fewest rounds, for what is small.
#pragma once

#include <muster/comm/collectives/algo/fold.hpp>

namespace muster::inline v0::detail {

/// log2 N rounds of the whole buffer. Partners combine in the order of their ranks, so both get the same bits, and by
/// induction all ranks do.
template <class Transport>
task recursive_doubling_allreduce(flow<Transport>& f, std::byte* data, std::size_t bytes, const reduction& how) {
  const folding fold(f.rank(), f.size());
  if (fold.lends() || fold.borrows()) co_await fold_in(f, fold, data, bytes, how);
  if (!fold.lends()) {
    // The partner reads what we combine into at the same time: each round sends a copy.
    std::byte* const sent = f.scratch(bytes);
    for (int distance = 1; distance < fold.power; distance *= 2) {
      const int partner = fold.rank_of(fold.number() ^ distance);
      if (bytes > 0) std::memcpy(sent, data, bytes);
      request receiving;
      request sending;
      f.send(sending, partner, sent, bytes);
      f.receive_combine(receiving, partner, data, bytes, how);
      co_await f.done(receiving);
      co_await f.done(sending);
    }
    how.finish(data, bytes, f.size());
  }
  if (fold.lends() || fold.borrows()) co_await fold_out(f, fold, data, bytes);
}

/// Bruck's allgather (1997, https://doi.org/10.1109/71.642949) on balanced blocks: at step k a rank sends the 2^k
/// blocks from its own on, in at most two runs around the end, so that nothing is turned at the end and any N will do.
template <class Transport>
task recursive_doubling_allgather(flow<Transport>& f, blocks data) {
  const int n = f.size();
  const int me = f.rank();
  for (int held = 1; held < n; held *= 2) {
    const int moved = held < n - held ? held : n - held;
    const int to = (me - held + n) % n;
    const int from = (me + held) % n;
    const int out_cut = me + moved > n ? n - me : moved;  // blocks before the end
    const int in_cut = from + moved > n ? n - from : moved;
    request receiving[2];
    request sending[2];
    const auto in = data.between(from, from + in_cut);
    const auto out = data.between(me, me + out_cut);
    f.receive(receiving[0], from, in.data(), in.size());
    f.send(sending[0], to, out.data(), out.size());
    if (in_cut < moved) {
      const auto wrapped = data.between(0, moved - in_cut);
      f.receive(receiving[1], from, wrapped.data(), wrapped.size());
    }
    if (out_cut < moved) {
      const auto wrapped = data.between(0, moved - out_cut);
      f.send(sending[1], to, wrapped.data(), wrapped.size());
    }
    co_await f.done(receiving[0]);
    if (in_cut < moved) co_await f.done(receiving[1]);
    co_await f.done(sending[0]);
    if (out_cut < moved) co_await f.done(sending[1]);
  }
}

/// The dissemination barrier (Hensgen, Finkel and Manber 1988): at step k rank r tells r + 2^k; any N.
template <class Transport>
task dissemination_barrier(flow<Transport>& f) {
  const int n = f.size();
  for (int distance = 1; distance < n; distance *= 2) {
    request receiving;
    request sending;
    f.receive(receiving, (f.rank() + n - distance) % n, nullptr, 0);
    f.send(sending, (f.rank() + distance) % n, nullptr, 0);
    co_await f.done(receiving);
    co_await f.done(sending);
  }
}

}  // namespace muster::inline v0::detail
