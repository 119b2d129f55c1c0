// The pipelined chain: the data passes down a line of ranks in chunks, so that all links work at the same time.
#pragma once

#include <algorithm>
#include <cstddef>

#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Bytes of a chunk. The first chunk reaches the last rank N-2 chunk times after it reaches the second rank, so chunks
/// should be small. Each chunk costs a latency, so chunks should not be too small. With the shipped constants a latency
/// costs as much as 5 to 37 KB. A chunk is larger than that, and is still in a second-level cache when it is passed on.
/// A constant, because all ranks have to agree on the size.
inline constexpr std::size_t chain_chunk = 65536;

/// Broadcasts the root's `data` to every rank. The ranks form a line that begins with the root. Each rank receives
/// chunk k+1 while it sends chunk k, with room for one more chunk in either direction, so that no rank waits for a
/// neighbour's turn. The last rank has all data N-2 chunk times after the second rank: for large data the time is
/// nearly that of a single copy, for any N.
inline task chain_broadcast(collective_context& ctx, std::byte* data, std::size_t bytes, int root) {
  const int n = ctx.size();
  const int previous = (ctx.rank() + n - 1) % n;
  const int next = (ctx.rank() + 1) % n;
  const bool first = ctx.rank() == root;
  const bool last = next == root;
  const std::size_t chunks = std::max<std::size_t>((bytes + chain_chunk - 1) / chain_chunk, 1);
  const auto size_of = [bytes](std::size_t k) { return std::min(chain_chunk, bytes - k * chain_chunk); };

  request receiving[2];
  request sending[2];
  for (std::size_t k = 0; !first && k < std::min<std::size_t>(chunks, 2); ++k)
    ctx.receive(receiving[k], previous, data + k * chain_chunk, size_of(k));
  for (std::size_t k = 0; k < chunks; ++k) {
    request& in = receiving[k % 2];
    request& out = sending[k % 2];
    if (!first) co_await ctx.done(in);
    if (!last) {
      if (k >= 2) co_await ctx.done(out);
      ctx.send(out, next, data + k * chain_chunk, size_of(k));
    }
    if (!first && k + 2 < chunks) ctx.receive(in, previous, data + (k + 2) * chain_chunk, size_of(k + 2));
  }
  for (std::size_t k = chunks - std::min<std::size_t>(chunks, 2); !last && k < chunks; ++k)
    co_await ctx.done(sending[k % 2]);
}

}}}  // namespace muster::v0::detail
