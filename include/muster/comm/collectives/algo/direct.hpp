// Direct exchange: every rank gives every other what it owes it, in one message each.
#pragma once

#include <cstring>

#include <muster/comm/collectives/algo/blocks.hpp>
#include <muster/comm/task.hpp>

namespace muster::inline v0::detail {

/// Piece p of every rank's `in` reaches rank p's `out`, in the order of ranks; `bytes` a piece. N-1 rounds in which
/// every rank sends to one and receives from one, so that nobody is flooded.
template <class Transport>
task direct_all_to_all(flow<Transport>& f, const std::byte* in, std::byte* out, std::size_t bytes) {
  const int n = f.size();
  const int me = f.rank();
  const auto piece = [bytes](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  if (bytes > 0) std::memcpy(out + piece(me), in + piece(me), bytes);
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n;
    const int from = (me + n - step) % n;
    request receiving;
    request sending;
    f.receive(receiving, from, out + piece(from), bytes);
    f.send(sending, to, in + piece(to), bytes);
    co_await f.done(receiving);
    co_await f.done(sending);
  }
}

/// Block p of every rank's `in` is combined at rank p, in the order of rounds, into `out` (one block), finished.
template <class Transport>
task direct_reduce_scatter(flow<Transport>& f, blocks in, std::byte* out, const reduction& how) {
  const int n = f.size();
  const int me = f.rank();
  const auto mine = in.at(me);
  if (!mine.empty()) std::memcpy(out, mine.data(), mine.size());
  for (int step = 1; step < n; ++step) {
    const auto theirs = in.at((me + step) % n);
    request receiving;
    request sending;
    f.receive_combine(receiving, (me + n - step) % n, out, mine.size(), how);
    f.send(sending, (me + step) % n, theirs.data(), theirs.size());
    co_await f.done(receiving);
    co_await f.done(sending);
  }
  how.finish(out, mine.size(), n);
}

/// Every rank sends straight to the root.
template <class Transport>
task direct_gather(flow<Transport>& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  if (f.rank() != root) {
    request sending;
    f.send(sending, root, in, bytes);
    co_await f.done(sending);
    co_return;
  }
  for (int rank = 0; rank < f.size(); ++rank) {
    std::byte* const place = out + static_cast<std::size_t>(rank) * bytes;
    if (rank == root) {
      if (bytes > 0 && place != in) std::memcpy(place, in, bytes);
      continue;
    }
    request receiving;
    f.receive(receiving, rank, place, bytes);
    co_await f.done(receiving);
  }
}

/// The root sends straight to every rank.
template <class Transport>
task direct_scatter(flow<Transport>& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  if (f.rank() != root) {
    request receiving;
    f.receive(receiving, root, out, bytes);
    co_await f.done(receiving);
    co_return;
  }
  for (int rank = 0; rank < f.size(); ++rank) {
    const std::byte* const place = in + static_cast<std::size_t>(rank) * bytes;
    if (rank == root) {
      if (bytes > 0 && place != out) std::memcpy(out, place, bytes);
      continue;
    }
    request sending;
    f.send(sending, rank, place, bytes);
    co_await f.done(sending);
  }
}

}  // namespace muster::inline v0::detail
