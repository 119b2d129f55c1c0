// What makes algorithms for powers of two work for any number of ranks: the ranks too many lend their data to a
// neighbour and get the result back (Thakur, Rabenseifner and Gropp 2005, https://doi.org/10.1177/1094342005051521,
// section 4.5).
#pragma once

#include <muster/comm/algorithms/blocks.hpp>
#include <muster/comm/task.hpp>

namespace muster::inline v0::detail {

/// The first 2 * extra ranks stand in pairs, of which the odd one works for both; the working ranks are numbered
/// 0 .. power-1 without gaps.
struct folding {
  folding(int rank_in, int size) : rank(rank_in), power(power_of_two_below(size)), extra(size - power) {}
  [[nodiscard]] bool lends() const { return rank < 2 * extra && rank % 2 == 0; }
  [[nodiscard]] bool borrows() const { return rank < 2 * extra && rank % 2 == 1; }
  [[nodiscard]] int number() const { return rank < 2 * extra ? rank / 2 : rank - extra; }
  [[nodiscard]] int rank_of(int n) const { return n < extra ? 2 * n + 1 : n + extra; }

  int rank;
  int power;
  int extra;
};

/// Lenders hand their data to the odd neighbour, which combines it with its own.
inline task fold_in(executor& f, folding fold, std::byte* data, std::size_t bytes, const reduction& how) {
  request moving;
  if (fold.lends()) {
    f.send(moving, fold.rank + 1, data, bytes);
  } else {
    f.receive_combine(moving, fold.rank - 1, data, bytes, how);
  }
  co_await f.done(moving);
}

/// Lenders get the result.
inline task fold_out(executor& f, folding fold, std::byte* data, std::size_t bytes) {
  request moving;
  if (fold.lends()) {
    f.receive(moving, fold.rank + 1, data, bytes);
  } else {
    f.send(moving, fold.rank - 1, data, bytes);
  }
  co_await f.done(moving);
}

}  // namespace muster::inline v0::detail
