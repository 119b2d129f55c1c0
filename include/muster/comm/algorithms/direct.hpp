// Direct exchange: every rank sends every other rank its data in one message each.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include <muster/comm/algorithms/exchange_pieces.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Sends piece p of every rank's `in` to rank p's `out`, in the order of ranks. In each of N-1 rounds every rank sends
/// to one rank and receives from one rank, so that no rank is flooded.
inline task direct_all_to_all(collective_context& ctx, rank_pieces in, rank_pieces out) {
  const int n = ctx.size();
  const int me = ctx.rank();
  if (const auto own = in.at(me); !own.empty()) std::memcpy(out.at(me).data(), own.data(), own.size());
  for (int step = 1; step < n; ++step) {
    const int destination = (me + step) % n;
    const int source = (me + n - step) % n;
    co_await ctx.exchange(destination, in.at(destination), source, out.at(source));
  }
}

/// Combines block p of every rank's `in` at rank p, in the order of rounds, into `out` (one block), finished.
inline task direct_reduce_scatter(collective_context& ctx, blocks in, std::byte* out, const reduction& reduce) {
  const int n = ctx.size();
  const int me = ctx.rank();
  const auto mine = in.at(me);
  if (!mine.empty()) std::memcpy(out, mine.data(), mine.size());
  for (int step = 1; step < n; ++step) {
    const int destination = (me + step) % n;
    co_await exchange_pieces(ctx, destination, in.at(destination), (me + n - step) % n, {out, mine.size()}, reduce);
  }
  reduce.finish(out, mine.size(), n);
}

/// A small array in the group's memory. Destroying the array cancels unfinished requests in it.
template <class T>
class pool_array {
 public:
  pool_array(frame_pool& pool, std::size_t count)
      : first_(static_cast<T*>(pool.take(count * sizeof(T)))), count_(count) {
    std::uninitialized_default_construct_n(first_, count);
  }
  pool_array(const pool_array&) = delete;
  pool_array& operator=(const pool_array&) = delete;
  ~pool_array() {
    std::destroy_n(first_, count_);
    frame_pool::release(first_);
  }
  T& operator[](std::size_t i) noexcept { return first_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }

 private:
  T* first_;
  std::size_t count_;
};

/// The state of a direct allreduce. This rank sends every peer the pieces of the peer's block and then, as they become
/// ready, its own pieces. This rank receives from every peer the pieces for its own block and then the pieces of the
/// peer's block.
class direct_exchange {
 public:
  direct_exchange(collective_context& ctx, blocks data, const reduction& reduce)
      : ctx_(ctx),
        data_(data),
        reduce_(reduce),
        peers_(static_cast<std::size_t>(ctx.size() - 1)),
        requests_(ctx.pool(), peers_ * lanes * outstanding),
        state_(ctx.pool(), peers_),
        inputs_(ctx.pool(), peers_ + 1) {
    if (reduce.folds_at_once(ctx.size())) kept_ = ctx.scratch(peers_ * data_.at(ctx.rank()).size());
  }

  /// Returns true if all pieces are sent to and received from all peers.
  [[nodiscard]] bool finished() const noexcept { return finished_ == peers_ * lanes; }

  /// Starts the sends and receives that can start and checks the outstanding ones; returns true when anything has
  /// changed.
  bool advance() {
    bool changed = false;
    for (std::size_t j = 0; j < peers_; ++j) {
      changed |= count_completed(j, out);
      changed |= count_completed(j, in);
    }
    if (kept_ != nullptr) changed |= fold_arrived();
    for (std::size_t j = 0; j < peers_; ++j) {
      changed |= begin_sends(j);
      changed |= begin_receives(j);
    }
    if (changed) return true;
    // None has completed by itself: tests one outstanding request, each time another.
    for (std::size_t tries = requests_.size(); tries > 0; --tries) {
      last_tested_ = (last_tested_ + 1) % requests_.size();
      if (!collective_context::is_over(requests_[last_tested_])) return ctx_.test(requests_[last_tested_]);
    }
    return false;
  }

 private:
  enum lane : std::size_t { out, in, lanes };
  static constexpr std::size_t outstanding = 2;  // most unfinished requests of a lane
  struct progress {                              // numbers of pieces sent to and received from a peer, by lane
    std::size_t started[lanes] = {};
    std::size_t done[lanes] = {};
  };

  // Returns peer j. Peers are numbered in the order in which their pieces are combined: from the next rank on.
  [[nodiscard]] int rank_of(std::size_t j) const { return (ctx_.rank() + 1 + static_cast<int>(j)) % ctx_.size(); }
  [[nodiscard]] std::size_t pieces_of(int rank) const { return detail::pieces_of(data_.at(rank).size()); }
  [[nodiscard]] std::span<std::byte> piece(int rank, std::size_t k) const { return piece_of(data_.at(rank), k); }
  [[nodiscard]] request& request_of(std::size_t j, lane which, std::size_t index) {
    return requests_[(j * lanes + which) * outstanding + index % outstanding];
  }
  // Returns the number of pieces to send to peer j, which is also the number to receive from peer j.
  [[nodiscard]] std::size_t pieces_each_way(std::size_t j) const {
    return pieces_of(rank_of(j)) + pieces_of(ctx_.rank());
  }

  // Returns the number of pieces in this rank's block that contain the contributions from this rank and the peers up to
  // j.
  [[nodiscard]] std::size_t combined(std::size_t j) { return std::min(state_[j].done[in], pieces_of(ctx_.rank())); }

  // Returns the number of pieces in this rank's block that have their final value.
  [[nodiscard]] std::size_t completed() { return kept_ != nullptr ? folded_ : combined(peers_ - 1); }

  // Folds the pieces of this rank's block that have arrived from all peers. Returns true if there were any.
  bool fold_arrived() {
    std::size_t arrived = pieces_of(ctx_.rank());
    for (std::size_t j = 0; j < peers_; ++j) arrived = std::min(arrived, combined(j));
    const bool changed = folded_ < arrived;
    for (; folded_ < arrived; ++folded_) {
      const auto own = piece(ctx_.rank(), folded_);
      for (std::size_t j = 0; j < peers_; ++j) inputs_[j] = kept(j, folded_).data();
      inputs_[peers_] = own.data();
      std::byte* const result[] = {own.data()};
      reduce_.fold(result, {&inputs_[0], inputs_.size()}, own.size());
    }
    return changed;
  }
  // Returns the place for piece k of this rank's block from peer j, if the pieces are folded at once.
  [[nodiscard]] std::span<std::byte> kept(std::size_t j, std::size_t k) const {
    const std::size_t bytes = data_.at(ctx_.rank()).size();
    return piece_of(std::span(kept_ + j * bytes, bytes), k);
  }

  // Starts the sends to peer j that may start. Returns true if any has started. So does begin_receives().
  bool begin_sends(std::size_t j) {
    auto& s = state_[j];
    const std::size_t theirs = pieces_of(rank_of(j));
    bool changed = false;
    while (s.started[out] < pieces_each_way(j) && s.started[out] - s.done[out] < outstanding) {
      const std::size_t i = s.started[out];
      if (i >= theirs && i - theirs >= completed()) break;
      const auto bytes = i < theirs ? piece(rank_of(j), i) : piece(ctx_.rank(), i - theirs);
      ctx_.send(request_of(j, out, i), rank_of(j), bytes.data(), bytes.size());
      ++s.started[out];
      changed = true;
    }
    return changed;
  }

  bool begin_receives(std::size_t j) {
    auto& s = state_[j];
    const std::size_t mine = pieces_of(ctx_.rank());
    bool changed = false;
    while (s.started[in] < pieces_each_way(j) && s.started[in] - s.done[in] < outstanding) {
      const std::size_t i = s.started[in];
      request& req = request_of(j, in, i);
      if (i < mine && kept_ != nullptr) {
        const auto bytes = kept(j, i);
        ctx_.receive(req, rank_of(j), bytes.data(), bytes.size());
      } else if (i < mine) {
        if (j > 0 && i >= combined(j - 1)) break;  // in the order of peers, whichever peer sends first
        const auto bytes = piece(ctx_.rank(), i);
        ctx_.receive_combine(req, rank_of(j), bytes.data(), bytes.size(), reduce_);
      } else {
        const auto bytes = piece(rank_of(j), i - mine);
        ctx_.receive(req, rank_of(j), bytes.data(), bytes.size());
      }
      ++s.started[in];
      changed = true;
    }
    return changed;
  }

  // Counts the requests of the lane that have completed, in their order. Returns true if there were any.
  bool count_completed(std::size_t j, lane which) {
    auto& s = state_[j];
    bool changed = false;
    while (s.done[which] < s.started[which] && collective_context::is_over(request_of(j, which, s.done[which]))) {
      const std::size_t i = s.done[which]++;
      if (which == in && j == peers_ - 1 && i < pieces_of(ctx_.rank())) {
        const auto combined_piece = piece(ctx_.rank(), i);
        reduce_.finish(combined_piece.data(), combined_piece.size(), ctx_.size());
      }
      if (s.done[which] == pieces_each_way(j)) ++finished_;
      changed = true;
    }
    return changed;
  }

  collective_context& ctx_;
  blocks data_;
  const reduction& reduce_;
  std::size_t peers_;
  pool_array<request> requests_;
  pool_array<progress> state_;
  pool_array<const std::byte*> inputs_;
  std::byte* kept_ = nullptr;  // the pieces from all peers, if they are folded at once
  std::size_t folded_ = 0;
  std::size_t finished_ = 0;  // number of lanes whose pieces are all done
  std::size_t last_tested_ = 0;
};

/// Performs an allreduce: every rank combines one block and sends the result to all ranks, with two blocks of 1/N of
/// the data to every peer, and to all peers at once. A block is sent in pieces, so that a piece is sent while the next
/// piece is received. The order of combination does not depend on the order of arrival, so every run has the same bits.
inline task direct_allreduce(collective_context& ctx, blocks data, const reduction& reduce) {
  direct_exchange exchange(ctx, data, reduce);
  while (!exchange.finished()) co_await ctx.until([&exchange] { return exchange.advance(); });
}

/// Performs a gather: every rank sends directly to the root.
inline task direct_gather(collective_context& ctx, std::span<const std::byte> in, rank_pieces out, int root) {
  if (ctx.rank() != root) {
    co_await ctx.send_to(root, in);
    co_return;
  }
  for (int rank = 0; rank < ctx.size(); ++rank) {
    const auto place = out.at(rank);
    if (rank != root) {
      co_await ctx.receive_from(rank, place);
    } else if (!place.empty() && place.data() != in.data()) {
      std::memcpy(place.data(), in.data(), place.size());
    }
  }
}

/// Performs a scatter: the root sends directly to every rank.
inline task direct_scatter(collective_context& ctx, rank_pieces in, std::span<std::byte> out, int root) {
  if (ctx.rank() != root) {
    co_await ctx.receive_from(root, out);
    co_return;
  }
  for (int rank = 0; rank < ctx.size(); ++rank) {
    const auto place = in.at(rank);
    if (rank != root) {
      co_await ctx.send_to(rank, place);
    } else if (!place.empty() && place.data() != out.data()) {
      std::memcpy(out.data(), place.data(), place.size());
    }
  }
}

}}}  // namespace muster::v0::detail
