// Direct exchange: every rank gives every other what it owes it, in one message each.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include <muster/comm/algorithms/exchange.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Piece p of every rank's `in` reaches rank p's `out`, in the order of ranks; `bytes` a piece. N-1 rounds in which
/// every rank sends to one and receives from one, so that no rank is flooded.
inline task direct_all_to_all(executor& f, const std::byte* in, std::byte* out, std::size_t bytes) {
  const int n = f.size();
  const int me = f.rank();
  const auto piece = [bytes](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  if (bytes > 0) std::memcpy(out + piece(me), in + piece(me), bytes);
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n;
    const int from = (me + n - step) % n;
    co_await f.exchange(to, {in + piece(to), bytes}, from, {out + piece(from), bytes});
  }
}

/// Block p of every rank's `in` is combined at rank p, in the order of rounds, into `out` (one block), finished.
inline task direct_reduce_scatter(executor& f, blocks in, std::byte* out, const reduction& how) {
  const int n = f.size();
  const int me = f.rank();
  const auto mine = in.at(me);
  if (!mine.empty()) std::memcpy(out, mine.data(), mine.size());
  for (int step = 1; step < n; ++step) {
    const int to = (me + step) % n;
    co_await exchange_pieces(f, to, in.at(to), (me + n - step) % n, {out, mine.size()}, how);
  }
  how.finish(out, mine.size(), n);
}

/// A small array in memory of the group. Requests are taken back when it goes.
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

/// The state of a direct allreduce: to every peer go the pieces of its block and then, as they become ready, those of
/// this rank's; from every peer come its pieces of this rank's block and then those of its own.
class direct_exchange {
 public:
  direct_exchange(executor& f, blocks data, const reduction& how)
      : f_(f),
        data_(data),
        how_(how),
        peers_(static_cast<std::size_t>(f.size() - 1)),
        requests_(f.pool(), peers_ * lanes * in_flight),
        state_(f.pool(), peers_) {}

  [[nodiscard]] bool over() const noexcept { return finished_ == peers_ * lanes; }

  /// Starts what can be started and looks at what is under way; true when anything has changed.
  bool turn() {
    bool changed = false;
    for (std::size_t j = 0; j < peers_; ++j) {
      changed |= look(j, out);
      changed |= look(j, in);
    }
    for (std::size_t j = 0; j < peers_; ++j) {
      changed |= begin_sends(j);
      changed |= begin_receives(j);
    }
    if (changed) return true;
    // Nothing came of itself: one of them is asked for, each time another.
    for (std::size_t tries = requests_.size(); tries > 0; --tries) {
      asked_ = (asked_ + 1) % requests_.size();
      if (!executor::is_over(requests_[asked_])) return f_.test(requests_[asked_]);
    }
    return false;
  }

 private:
  enum lane : std::size_t { out, in, lanes };
  static constexpr std::size_t in_flight = 2;
  struct progress {
    std::size_t begun[lanes] = {};
    std::size_t done[lanes] = {};
  };

  // Peers in the order in which their pieces are combined: from the next rank on.
  [[nodiscard]] int rank_of(std::size_t j) const { return (f_.rank() + 1 + static_cast<int>(j)) % f_.size(); }
  [[nodiscard]] std::size_t pieces_of(int rank) const { return detail::pieces_of(data_.at(rank).size()); }
  [[nodiscard]] std::span<std::byte> piece(int rank, std::size_t k) const { return piece_of(data_.at(rank), k); }
  [[nodiscard]] request& slot(std::size_t j, lane which, std::size_t index) {
    return requests_[(j * lanes + which) * in_flight + index % in_flight];
  }
  [[nodiscard]] std::size_t total(std::size_t j) const { return pieces_of(rank_of(j)) + pieces_of(f_.rank()); }

  // Of this rank's block: pieces that hold what this rank and the peers up to j gave.
  [[nodiscard]] std::size_t combined(std::size_t j) { return std::min(state_[j].done[in], pieces_of(f_.rank())); }

  bool begin_sends(std::size_t j) {
    auto& s = state_[j];
    const std::size_t theirs = pieces_of(rank_of(j));
    bool changed = false;
    while (s.begun[out] < total(j) && s.begun[out] - s.done[out] < in_flight) {
      const std::size_t i = s.begun[out];
      if (i >= theirs && i - theirs >= combined(peers_ - 1)) break;
      const auto bytes = i < theirs ? piece(rank_of(j), i) : piece(f_.rank(), i - theirs);
      f_.send(slot(j, out, i), rank_of(j), bytes.data(), bytes.size());
      ++s.begun[out];
      changed = true;
    }
    return changed;
  }

  bool begin_receives(std::size_t j) {
    auto& s = state_[j];
    const std::size_t mine = pieces_of(f_.rank());
    bool changed = false;
    while (s.begun[in] < total(j) && s.begun[in] - s.done[in] < in_flight) {
      const std::size_t i = s.begun[in];
      request& r = slot(j, in, i);
      if (i < mine) {
        if (j > 0 && i >= combined(j - 1)) break;  // in the order of peers, whichever sends first
        const auto bytes = piece(f_.rank(), i);
        f_.receive_combine(r, rank_of(j), bytes.data(), bytes.size(), how_);
      } else {
        const auto bytes = piece(rank_of(j), i - mine);
        f_.receive(r, rank_of(j), bytes.data(), bytes.size());
      }
      ++s.begun[in];
      changed = true;
    }
    return changed;
  }

  bool look(std::size_t j, lane which) {
    auto& s = state_[j];
    bool changed = false;
    while (s.done[which] < s.begun[which] && executor::is_over(slot(j, which, s.done[which]))) {
      const std::size_t i = s.done[which]++;
      if (which == in && j == peers_ - 1 && i < pieces_of(f_.rank())) {
        const auto whole = piece(f_.rank(), i);
        how_.finish(whole.data(), whole.size(), f_.size());
      }
      if (s.done[which] == total(j)) ++finished_;
      changed = true;
    }
    return changed;
  }

  executor& f_;
  blocks data_;
  const reduction& how_;
  std::size_t peers_;
  pool_array<request> requests_;
  pool_array<progress> state_;
  std::size_t finished_ = 0;  // lanes
  std::size_t asked_ = 0;
};

/// Every rank combines one block of all and gives it to all: two messages to every peer, of 1/N of the data each, and
/// all peers at once. In pieces, so that a piece goes out while the next comes in. A piece is combined in one order
/// whatever comes first: the same bits in every run.
inline task direct_allreduce(executor& f, blocks data, const reduction& how) {
  direct_exchange exchange(f, data, how);
  while (!exchange.over()) co_await f.until([&exchange] { return exchange.turn(); });
}

/// Every rank sends straight to the root.
inline task direct_gather(executor& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  if (f.rank() != root) {
    co_await f.send_to(root, {in, bytes});
    co_return;
  }
  for (int rank = 0; rank < f.size(); ++rank) {
    std::byte* const place = out + static_cast<std::size_t>(rank) * bytes;
    if (rank != root) {
      co_await f.receive_from(rank, {place, bytes});
    } else if (bytes > 0 && place != in) {
      std::memcpy(place, in, bytes);
    }
  }
}

/// The root sends straight to every rank.
inline task direct_scatter(executor& f, const std::byte* in, std::byte* out, std::size_t bytes, int root) {
  if (f.rank() != root) {
    co_await f.receive_from(root, {out, bytes});
    co_return;
  }
  for (int rank = 0; rank < f.size(); ++rank) {
    const std::byte* const place = in + static_cast<std::size_t>(rank) * bytes;
    if (rank != root) {
      co_await f.send_to(rank, {place, bytes});
    } else if (bytes > 0 && place != out) {
      std::memcpy(out, place, bytes);
    }
  }
}

}}}  // namespace muster::v0::detail
