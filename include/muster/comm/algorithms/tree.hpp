// The binomial tree: log2 N rounds, in which every rank exchanges one message with its parent and one with each child.
#pragma once

#include <algorithm>

#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank's position in the binomial tree below `root`. Ranks are numbered from the root; the subtree of number v
/// covers [v, v + extent), and its children are v + extent/2, v + extent/4 ... v + 1, cut at N.
struct tree_position {
  tree_position(int rank, int rank_count, int root)
      : n(rank_count), root_rank(root), number((rank - root + rank_count) % rank_count) {
    while (extent < n && (number & extent) == 0) extent *= 2;
  }
  [[nodiscard]] int rank_of(int v) const { return (v + root_rank) % n; }
  [[nodiscard]] int parent() const { return rank_of(number - extent); }  // requires a number other than 0
  [[nodiscard]] bool is_root() const { return number == 0; }
  /// Returns the number of ranks in the subtree [v, v + width), cut at N.
  [[nodiscard]] std::size_t covered(int v, int width) const {
    return static_cast<std::size_t>(std::min(v + width, n) - v);
  }
  /// Returns the part of `held` that belongs to the subtree of `child`, whose number is `stride` above this
  /// rank's. `held` contains the data of this rank's subtree, `bytes` per rank.
  template <class Byte>
  [[nodiscard]] std::span<Byte> part(Byte* held, int child, int stride, std::size_t bytes) const {
    return {held + static_cast<std::size_t>(stride) * bytes, covered(child, stride) * bytes};
  }

  int n;
  int root_rank;
  int number;      ///< this rank, numbered from the root
  int extent = 1;  ///< size of the subtree below this rank, not cut at N
};

/// Broadcasts the root's `data` to every rank; each rank sends to its largest subtree first.
inline task tree_broadcast(collective_context& ctx, std::byte* data, std::size_t bytes, int root) {
  const tree_position place(ctx.rank(), ctx.size(), root);
  if (!place.is_root()) co_await ctx.receive_from(place.parent(), {data, bytes});
  for (int step = place.extent / 2; step > 0; step /= 2) {
    if (place.number + step < place.n) co_await ctx.send_to(place.rank_of(place.number + step), {data, bytes});
  }
}

/// Combines every rank's `data` in place up the tree: afterwards the root's buffer holds the finished result and the
/// other buffers hold partial results.
inline task tree_reduce(collective_context& ctx, std::byte* data, std::size_t bytes, int root,
                        const reduction& reduce) {
  const tree_position place(ctx.rank(), ctx.size(), root);
  for (int step = 1; step < place.extent; step *= 2) {
    if (place.number + step >= place.n) break;
    co_await ctx.receive_from(place.rank_of(place.number + step), {data, bytes}, &reduce);
  }
  if (place.is_root()) {
    reduce.finish(data, bytes, place.n);
  } else {
    co_await ctx.send_to(place.parent(), {data, bytes});
  }
}

/// Reduces to rank 0, then broadcasts.
inline task tree_allreduce(collective_context& ctx, std::byte* data, std::size_t bytes, const reduction& reduce) {
  co_await tree_reduce(ctx, data, bytes, 0, reduce);
  co_await tree_broadcast(ctx, data, bytes, 0);
}

/// Gathers every rank's `bytes` at `in` into the root's `out`, in the order of ranks. A rank collects its whole subtree
/// before it sends, so the root receives log2 N messages.
inline task tree_gather(collective_context& ctx, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  const tree_position place(ctx.rank(), ctx.size(), root);
  // Numbers count from the root. Only with root 0 do the pieces have their final positions in `out` from the start.
  const std::size_t subtree_bytes = place.covered(place.number, place.extent) * bytes;
  std::byte* held = place.is_root() && root == 0 ? out : ctx.scratch(subtree_bytes);
  if (bytes > 0 && held != in) std::memcpy(held, in, bytes);
  for (int step = 1; step < place.extent; step *= 2) {
    const int child = place.number + step;
    if (child >= place.n) break;
    co_await ctx.receive_from(place.rank_of(child), place.part(held, child, step, bytes));
  }
  if (!place.is_root()) {
    co_await ctx.send_to(place.parent(), {held, subtree_bytes});
  } else if (held != out && bytes > 0) {
    // the numbers 0 .. are the ranks root ..
    const auto before_wrap = static_cast<std::size_t>(place.n - root) * bytes;
    std::memcpy(out + static_cast<std::size_t>(root) * bytes, held, before_wrap);
    std::memcpy(out, held + before_wrap, static_cast<std::size_t>(root) * bytes);
  }
}

/// Scatters the root's `in`, one piece of `bytes` per rank, to the ranks' `out`.
inline task tree_scatter(collective_context& ctx, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  const tree_position place(ctx.rank(), ctx.size(), root);
  const std::size_t subtree_bytes = place.covered(place.number, place.extent) * bytes;
  const std::byte* held = in;
  if (!place.is_root()) {
    std::byte* const received = ctx.scratch(subtree_bytes);
    co_await ctx.receive_from(place.parent(), {received, subtree_bytes});
    held = received;
  } else if (root != 0 && bytes > 0) {  // as in gather: reorders the pieces by number
    std::byte* const turned = ctx.scratch(subtree_bytes);
    const auto before_wrap = static_cast<std::size_t>(place.n - root) * bytes;
    std::memcpy(turned, in + static_cast<std::size_t>(root) * bytes, before_wrap);
    std::memcpy(turned + before_wrap, in, static_cast<std::size_t>(root) * bytes);
    held = turned;
  }
  for (int step = place.extent / 2; step > 0; step /= 2) {
    const int child = place.number + step;
    if (child < place.n) co_await ctx.send_to(place.rank_of(child), place.part(held, child, step, bytes));
  }
  if (bytes > 0 && held != out) std::memcpy(out, held, bytes);
}

}}}  // namespace muster::v0::detail
