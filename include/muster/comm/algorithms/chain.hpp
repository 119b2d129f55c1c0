// The pipelined chain: the data goes down a line of ranks in chunks, so that all links work at the same time.
#pragma once

#include <algorithm>
#include <cstddef>

#include <muster/comm/task.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Bytes of a chunk. The last rank waits N-2 chunks for its first, so chunks should be small; each costs a latency, so
/// not too small. With the shipped constants a latency is worth 10 to 20 KB: this is a few times as much, and a chunk
/// is still in a second-level cache when it is passed on. A constant, because all ranks have to agree on it.
inline constexpr std::size_t chain_chunk = 65536;

/// `data` of the root reaches every rank. The ranks stand in a line from the root on; each receives chunk k+1 while it
/// sends chunk k on, with room for one more either way, so that no rank waits for a neighbour's turn. N-2 chunks after
/// the first the last rank has all: the time is nearly that of one copy, whatever N is.
inline task chain_broadcast(executor& f, std::byte* data, std::size_t bytes, int root) {
  const int n = f.size();
  const int previous = (f.rank() + n - 1) % n;
  const int next = (f.rank() + 1) % n;
  const bool first = f.rank() == root;
  const bool last = next == root;
  const std::size_t chunks = std::max<std::size_t>((bytes + chain_chunk - 1) / chain_chunk, 1);
  const auto size_of = [bytes](std::size_t k) { return std::min(chain_chunk, bytes - k * chain_chunk); };

  request receiving[2];
  request sending[2];
  for (std::size_t k = 0; !first && k < std::min<std::size_t>(chunks, 2); ++k)
    f.receive(receiving[k], previous, data + k * chain_chunk, size_of(k));
  for (std::size_t k = 0; k < chunks; ++k) {
    request& in = receiving[k % 2];
    request& out = sending[k % 2];
    if (!first) co_await f.done(in);
    if (!last) {
      if (k >= 2) co_await f.done(out);
      f.send(out, next, data + k * chain_chunk, size_of(k));
    }
    if (!first && k + 2 < chunks) f.receive(in, previous, data + (k + 2) * chain_chunk, size_of(k + 2));
  }
  for (std::size_t k = chunks - std::min<std::size_t>(chunks, 2); !last && k < chunks; ++k)
    co_await f.done(sending[k % 2]);
}

}}}  // namespace muster::v0::detail
