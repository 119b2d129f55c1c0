// The binomial tree: log2 N rounds, every rank sends or receives what a subtree needs once.
#pragma once

#include <algorithm>

#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank's place in the binomial tree below `root`. Ranks are numbered from the root; the subtree of number v covers
/// [v, v + extent), and its children are v + extent/2, v + extent/4 ... v + 1, cut at N.
struct tree_place {
  tree_place(int rank, int size, int root) : n(size), top(root), number((rank - root + size) % size) {
    while (extent < n && (number & extent) == 0) extent *= 2;
  }
  [[nodiscard]] int rank_of(int v) const { return (v + top) % n; }
  [[nodiscard]] int parent() const { return rank_of(number - extent); }  // of a number other than 0
  [[nodiscard]] bool is_root() const { return number == 0; }
  /// How many ranks the subtree of v covers if none were missing beyond N.
  [[nodiscard]] std::size_t covered(int v, int width) const {
    return static_cast<std::size_t>(std::min(v + width, n) - v);
  }
  /// Of what this rank holds of its subtree, `bytes` a rank: what is of its child, which is `step` further.
  template <class Byte>
  [[nodiscard]] std::span<Byte> part(Byte* held, int child, int step, std::size_t bytes) const {
    return {held + static_cast<std::size_t>(step) * bytes, covered(child, step) * bytes};
  }

  int n;
  int top;
  int number;
  int extent = 1;
};

/// `data` of the root reaches every rank; each rank sends to its largest subtree first.
inline task tree_broadcast(executor& f, std::byte* data, std::size_t bytes, int root) {
  const tree_place at(f.rank(), f.size(), root);
  if (!at.is_root()) co_await f.receive_from(at.parent(), {data, bytes});
  for (int step = at.extent / 2; step > 0; step /= 2) {
    if (at.number + step < at.n) co_await f.send_to(at.rank_of(at.number + step), {data, bytes});
  }
}

/// `data`, every rank's contribution, is combined in place up the tree: afterwards the root's holds the finished result
/// and the others' hold parts of it.
inline task tree_reduce(executor& f, std::byte* data, std::size_t bytes, int root, const reduction& how) {
  const tree_place at(f.rank(), f.size(), root);
  for (int step = 1; step < at.extent; step *= 2) {
    if (at.number + step >= at.n) break;
    co_await f.receive_from(at.rank_of(at.number + step), {data, bytes}, &how);
  }
  if (at.is_root()) {
    how.finish(data, bytes, at.n);
  } else {
    co_await f.send_to(at.parent(), {data, bytes});
  }
}

/// Reduce to rank 0, then broadcast.
inline task tree_allreduce(executor& f, std::byte* data, std::size_t bytes, const reduction& how) {
  co_await tree_reduce(f, data, bytes, 0, how);
  co_await tree_broadcast(f, data, bytes, 0);
}

/// Every rank's `bytes` at `in` reach the root's `out`, in the order of ranks. A rank collects its whole subtree before
/// it sends, so the root receives log2 N messages.
inline task tree_gather(executor& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  const tree_place at(f.rank(), f.size(), root);
  // Numbers count from the root; only when that is rank 0 do they lie in `out` as they should from the start.
  const std::size_t whole = at.covered(at.number, at.extent) * bytes;
  std::byte* held = at.is_root() && root == 0 ? out : f.scratch(whole);
  if (bytes > 0 && held != in) std::memcpy(held, in, bytes);
  for (int step = 1; step < at.extent; step *= 2) {
    const int child = at.number + step;
    if (child >= at.n) break;
    co_await f.receive_from(at.rank_of(child), at.part(held, child, step, bytes));
  }
  if (!at.is_root()) {
    co_await f.send_to(at.parent(), {held, whole});
  } else if (held != out && bytes > 0) {
    const auto before_wrap = static_cast<std::size_t>(at.n - root) * bytes;  // numbers 0 .. are ranks root ..
    std::memcpy(out + static_cast<std::size_t>(root) * bytes, held, before_wrap);
    std::memcpy(out, held + before_wrap, static_cast<std::size_t>(root) * bytes);
  }
}

/// The root's `in`, one piece of `bytes` a rank, reaches the ranks' `out`.
inline task tree_scatter(executor& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  const tree_place at(f.rank(), f.size(), root);
  const std::size_t whole = at.covered(at.number, at.extent) * bytes;
  const std::byte* held = in;
  if (!at.is_root()) {
    std::byte* const room = f.scratch(whole);
    co_await f.receive_from(at.parent(), {room, whole});
    held = room;
  } else if (root != 0 && bytes > 0) {  // as in gather: into the order of numbers
    std::byte* const turned = f.scratch(whole);
    const auto before_wrap = static_cast<std::size_t>(at.n - root) * bytes;
    std::memcpy(turned, in + static_cast<std::size_t>(root) * bytes, before_wrap);
    std::memcpy(turned + before_wrap, in, static_cast<std::size_t>(root) * bytes);
    held = turned;
  }
  for (int step = at.extent / 2; step > 0; step /= 2) {
    const int child = at.number + step;
    if (child < at.n) co_await f.send_to(at.rank_of(child), at.part(held, child, step, bytes));
  }
  if (bytes > 0 && held != out) std::memcpy(out, held, bytes);
}

}}}  // namespace muster::v0::detail
