// What the ranks of one group share: a lane each, in the memory of the rank whose lane it is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/transport.hpp>

#include "host.hpp"

namespace muster::inline v0::detail {

inline constexpr std::size_t cache_line = 64;
/// What different ranks write, or one writes while others wait for it, lies this far apart: processors fetch the
/// neighbours of a line too, and a line that another rank fetched has to be won back before it can be written.
inline constexpr std::size_t apart = 256;
inline constexpr std::size_t small_limit = 8192;  // bytes a rank shows the others in one go
inline constexpr std::size_t staging_bytes = std::size_t{2} << 20;

/// What a rank brings to a collective. The ticket is written last: a rank that sees it sees the rest. What fits lies in
/// the same cache line and needs no second look.
struct alignas(apart) offer {
  static constexpr std::size_t inline_limit = 48;
  struct places {  // of the buffers: in the rank's shared memory if registered, else in its own
    std::uint64_t in;
    std::uint64_t out;
  };
  enum : std::uint32_t { registered_in = 1, registered_out = 2, pulls = 4 };  // the last as one rank's word for all

  std::atomic<std::uint64_t> ticket;  // see `ticket_word`
  std::uint32_t flags;
  union {
    alignas(16) std::byte bytes[inline_limit];
    places place;
  };
};

/// One word says which collective an offer is for (the low half of its number among the native ones of the group, from
/// 1) and with which arguments (a signature of the stamp, which is in lane_head::marks in full).
constexpr std::uint64_t ticket_word(std::uint64_t number, std::uint32_t signature) noexcept {
  return number << 32 | signature;
}

/// One word says how far a large collective is, and which: a later one is further. As wide as the numbers are, neither
/// comes round again within half a year of a million calls a second.
inline constexpr std::uint64_t step_bits = 20;
constexpr std::uint64_t step_word(std::uint64_t number, std::uint64_t step) noexcept {
  return (number << step_bits) + step;
}

/// Notices from one rank to another.
struct post {
  static constexpr std::uint64_t room = 8;
  alignas(cache_line) std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> read;
  alignas(cache_line) notice ring[room];
};

/// Messages from one rank to another: a ring of bytes.
struct fifo {
  static constexpr std::uint64_t severed = ~std::uint64_t{0};  // in place of `head`: the sender cannot go on
  alignas(cache_line) std::atomic<std::uint64_t> head;         // bytes ever written
  alignas(cache_line) std::atomic<std::uint64_t> tail;         // bytes ever read
  [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

/// The fixed part of a lane. Each line is written by the rank whose lane it is, but for the bell, and for `folded` and
/// `claimed` where ranks fold blocks of others.
struct lane_head {
  // By turns: a rank may be so many collectives ahead of those that still read, as the root of broadcasts is.
  static constexpr std::uint64_t turns = 8;
  offer offers[turns];
  alignas(apart) stamp marks[turns];
  // Steps of a large collective, see `step_word`: chunks laid out for others, folded, taken from others. Where blocks
  // are folded in place, the one step is this rank's block: folded, and begun, by any rank.
  alignas(apart) std::atomic<std::uint64_t> given;
  std::atomic<std::uint64_t> folded;
  std::atomic<std::uint64_t> taken;
  alignas(apart) std::atomic<std::uint64_t> claimed;
  alignas(apart) std::atomic<std::uint64_t> finished;  // the last collective that it needs nothing of any more
  std::atomic<std::uint64_t> left;     // 0: it is there; else 1 + the collectives it had called when it left
  std::atomic<std::uint32_t> revoked;  // it gave up: its memory is not to be used any more
  std::atomic<std::uint32_t> writing;  // it is writing into the memory of others just now
  std::atomic<std::uint32_t> core;     // where it ran when it came last, if there are more ranks than cores
  std::atomic<std::uint32_t> vote;     // see shm_transport::agree
  std::uint64_t probe;                 // an address in its private memory, for that
  alignas(apart) std::atomic<std::uint32_t> asleep;  // the bell: others clear it and wake the rank
  std::atomic<std::uint32_t> news;                   // raised with every notice to it
  std::atomic<std::uint32_t> leavers;                // ranks that will not touch this lane any more
};

/// Where things lie in a lane of a group of `ranks`, the same in all of them.
struct lane_layout {
  explicit lane_layout(int ranks) noexcept;
  std::size_t small, staging, posts, fifos, fifo_stride, fifo_bytes, total;
};

/// The lanes of a group, as one rank sees them. Used by one thread at a time.
class shm_board {
 public:
  /// `members` are ranks of the host, `lanes` where their lanes begin, both in the order of the group.
  shm_board(std::shared_ptr<shm_host> host, std::vector<int> members, int rank, std::span<const std::uint64_t> lanes);
  shm_board(const shm_board&) = delete;
  shm_board& operator=(const shm_board&) = delete;
  ~shm_board();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(lanes_.size()); }
  [[nodiscard]] shm_host& host() noexcept { return *host_; }
  [[nodiscard]] const shm_host& host() const noexcept { return *host_; }
  [[nodiscard]] const std::shared_ptr<shm_host>& shared_host() const noexcept { return host_; }
  [[nodiscard]] int host_rank(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  /// How errors and notices call that rank: another name where the group is a part of one whose ranks are counted
  /// otherwise.
  [[nodiscard]] int name_of(int rank) const noexcept { return names_[static_cast<std::size_t>(rank)]; }
  void name(std::vector<int> names) noexcept { names_ = std::move(names); }
  [[nodiscard]] const lane_layout& layout() const noexcept { return layout_; }

  [[nodiscard]] lane_head& lane(int rank) noexcept { return *reinterpret_cast<lane_head*>(start(rank)); }
  [[nodiscard]] const lane_head& lane(int rank) const noexcept { return *reinterpret_cast<lane_head*>(start(rank)); }
  [[nodiscard]] lane_head& mine() noexcept { return *mine_; }
  /// The payload of an offer that does not fit its line.
  [[nodiscard]] std::byte* small(int rank, std::uint64_t ticket) noexcept {
    return start(rank) + layout_.small + ticket % lane_head::turns * small_limit;
  }
  [[nodiscard]] std::byte* staging(int rank) noexcept { return start(rank) + layout_.staging; }
  [[nodiscard]] post& posts(int from, int to) noexcept {
    return reinterpret_cast<post*>(start(from) + layout_.posts)[to];
  }
  [[nodiscard]] fifo& messages(int from, int to) noexcept {
    return *reinterpret_cast<fifo*>(start(from) + layout_.fifos + static_cast<std::size_t>(to) * layout_.fifo_stride);
  }

  /// After something was written that a peer may wait for: wakes it if it sleeps.
  void wake(int rank) noexcept {
    make_visible();
    if (auto& bell = lane(rank).asleep; bell.load(std::memory_order_relaxed) != 0) ring(bell);
  }
  void wake_all() noexcept {
    make_visible();
    for (int r = 0; r < size(); ++r) {
      if (auto& bell = lane(r).asleep; r != rank_ && bell.load(std::memory_order_relaxed) != 0) ring(bell);
    }
  }

  /// Whether this process may rely on `shm_host::agreement::asymmetric`.
  [[nodiscard]] static bool can_be_asymmetric() noexcept;

  /// Sleep in two steps, so that nothing is missed in between. The first call only announces it: the caller looks once
  /// more at what it waits for. A second call without news sleeps until a peer wakes this rank, or until the time.
  void doze(clock::time_point until);

  /// A peer that has ended, or that left without ever calling collective `sequence`; -1 for none. Each is found once.
  /// A system call a peer.
  [[nodiscard]] int find_gone(std::uint64_t sequence);
  /// Says at the end that this rank called so many collectives.
  void leave(std::uint64_t called) noexcept;

  /// Memory for a rank's lane in a new group: its offset in that rank's memory.
  [[nodiscard]] static std::uint64_t allocate_lane(segment& memory, int ranks);

 private:
  [[nodiscard]] std::byte* start(int rank) const noexcept { return lanes_[static_cast<std::size_t>(rank)]; }
  void make_visible() const noexcept {
    if (!host_->agreed().asymmetric) std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  static void ring(std::atomic<std::uint32_t>& bell) noexcept;

  std::shared_ptr<shm_host> host_;
  std::vector<int> members_;
  std::vector<int> names_;
  int rank_;
  lane_layout layout_;
  std::vector<std::byte*> lanes_;
  lane_head* mine_;
  std::vector<bool> found_gone_;
};

}  // namespace muster::inline v0::detail
