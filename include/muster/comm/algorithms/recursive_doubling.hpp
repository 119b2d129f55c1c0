// Recursive doubling: at step k ranks 2^k apart exchange all they have. The fewest rounds, for what is small.
#pragma once

#include <algorithm>
#include <bit>

#include <muster/comm/algorithms/exchange.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// What makes algorithms for powers of two work for any number of ranks: the ranks too many lend their data to a
/// neighbour, which combines it with its own, and get the result back (Thakur, Rabenseifner and Gropp 2005,
/// https://doi.org/10.1177/1094342005051521, section 4.5). The first 2 * extra ranks stand in pairs, of which the odd
/// one works for both; the working ranks are numbered 0 .. power-1 without gaps.
struct folding {
  folding(int rank_in, int size)
      : rank(rank_in), power(static_cast<int>(std::bit_floor(static_cast<unsigned>(size)))), extra(size - power) {}
  [[nodiscard]] bool lends() const { return rank < 2 * extra && rank % 2 == 0; }
  [[nodiscard]] bool borrows() const { return rank < 2 * extra && rank % 2 == 1; }
  [[nodiscard]] int neighbour() const { return rank ^ 1; }  // of one that lends or borrows
  [[nodiscard]] int number() const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  [[nodiscard]] int rank_of(int n) const { return n < extra ? 2 * n + 1 : n + extra; }

  int rank;
  int power;
  int extra;
};

/// log2 N rounds of the whole buffer. Partners combine in the order of their ranks, so both get the same bits, and by
/// induction all ranks do.
inline task recursive_doubling_allreduce(executor& f, std::byte* data, std::size_t bytes, const reduction& how) {
  const folding fold(f.rank(), f.size());
  if (fold.lends()) {
    co_await f.send_to(fold.neighbour(), {data, bytes});
    co_await f.receive_from(fold.neighbour(), {data, bytes});
    co_return;
  }
  if (fold.borrows()) co_await f.receive_from(fold.neighbour(), {data, bytes}, &how);
  for (int distance = 1; distance < fold.power; distance *= 2)
    co_await exchange_combine(f, fold.rank_of(fold.number() ^ distance), data, bytes, how);
  how.finish(data, bytes, f.size());
  if (fold.borrows()) co_await f.send_to(fold.neighbour(), {data, bytes});
}

/// Bruck's allgather (1997, https://doi.org/10.1109/71.642949) on balanced blocks: at step k a rank sends the 2^k
/// blocks from its own on, in at most two runs around the end, so that nothing is turned at the end and any N will do.
inline task recursive_doubling_allgather(executor& f, blocks data) {
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
inline task dissemination_barrier(executor& f) {
  const int n = f.size();
  for (int distance = 1; distance < n; distance *= 2)
    co_await f.exchange((f.rank() + distance) % n, {}, (f.rank() + n - distance) % n, {});
}

}}}  // namespace muster::v0::detail
