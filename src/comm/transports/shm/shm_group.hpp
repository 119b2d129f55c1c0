// What the ranks of one group share: a slot each, in the memory of its rank.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/transport.hpp>

#include "host.hpp"

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::size_t cache_line = 64;
/// What different ranks write, or one writes while others wait for it, lies this far apart: processors fetch the
/// neighbours of a line too, and a line that another rank fetched has to be won back before it can be written.
inline constexpr std::size_t apart = 256;
inline constexpr std::size_t small_limit = 8192;  // bytes a rank shows the others in one go
/// The same, where no rank's buffer is registered: to copy so much costs less than one more synchronisation.
inline constexpr std::size_t shown_limit = std::size_t{128} << 10;
/// Of the area through which a rank passes large private buffers: so much that what was read there has left the
/// readers' second-level caches when its turn comes again; less where there are more ranks, since each has one.
[[nodiscard]] constexpr std::size_t staging_bytes(std::size_t ranks) noexcept {
  return std::max((std::size_t{8} << 20) / ranks / 4096 * 4096, std::size_t{2} << 20);
}

/// What a rank brings to a collective. The sequence is written last: a rank that sees it sees the rest. What fits lies
/// in the same cache line and needs no second look.
struct alignas(apart) contribution {
  static constexpr std::size_t inline_limit = 48;
  struct places {  // of the buffers in the rank's shared memory, if registered
    std::uint64_t in;
    std::uint64_t out;
  };
  enum : std::uint32_t { registered_in = 1, registered_out = 2, shown = 4 };

  std::atomic<std::uint64_t> sequence;  // see `sequence_word`
  std::uint32_t flags;
  union {
    alignas(16) std::byte bytes[inline_limit];
    places place;
  };
};

/// One word says which collective a contribution is for (the low half of its number among the native ones of the group,
/// from 1) and with which arguments (a hash of its signature, which is in slot_head::signatures in full).
constexpr std::uint64_t sequence_word(std::uint64_t number, std::uint32_t signature_hash) noexcept {
  return number << 32 | signature_hash;
}

/// One word says how far a large collective is, and which: a later one is further. As wide as the numbers are, neither
/// comes round again within half a year of a million calls a second.
inline constexpr std::uint64_t step_bits = 20;
constexpr std::uint64_t step_word(std::uint64_t number, std::uint64_t step) noexcept {
  return (number << step_bits) + step;
}

/// Control messages from one rank to another.
struct post {
  static constexpr std::uint64_t room = 8;
  alignas(cache_line) std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> read;
  alignas(cache_line) control_message ring[room];
};

/// Messages from one rank to another: a ring of bytes.
struct fifo {
  static constexpr std::uint64_t severed = ~std::uint64_t{0};  // in place of `head`: the sender cannot go on
  alignas(cache_line) std::atomic<std::uint64_t> head;         // bytes ever written
  alignas(cache_line) std::atomic<std::uint64_t> tail;         // bytes ever read
  [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

/// The fixed part of a slot. Each line is written by the slot's rank, but for the wakeup word, and for
/// `folded` and `claimed` where ranks fold blocks of others; what two ranks lay out for each other is by turns in both.
struct slot_head {
  // By turns: a rank may be so many collectives ahead of those that still read, as the root of broadcasts is.
  static constexpr std::uint64_t turns = 8;
  contribution contributions[turns];
  alignas(apart) collective_signature signatures[turns];
  // Steps of a large collective, see `step_word`: chunks laid out for others, folded, taken from others. Where blocks
  // are folded in place, the one step is this rank's block: folded, and begun, by any rank.
  alignas(apart) std::atomic<std::uint64_t> given;
  std::atomic<std::uint64_t> folded;
  std::atomic<std::uint64_t> taken;
  alignas(apart) std::atomic<std::uint64_t> claimed;
  alignas(apart) std::atomic<std::uint64_t> finished;  // the last collective that it needs nothing of any more
  std::atomic<std::uint32_t> writing;                  // it is writing into the memory of others just now
  std::atomic<std::uint32_t> core;  // where it ran when it came last, if there are more ranks than cores
  bool can_be_asymmetric;           // sleepers can make its writes visible; otherwise each writer does
  alignas(apart) std::atomic<std::uint32_t> asleep;  // the wakeup word: others clear it and wake the rank
  std::atomic<std::uint32_t> news;                   // raised with every control message to it
  std::atomic<std::uint32_t> leavers;                // ranks that will not touch this slot any more
  // It gave up: its memory is not to be used any more. Others ask before they write there, so this line, which is
  // seldom written, has it.
  std::atomic<std::uint32_t> revoked;
};

/// Where things lie in a slot of a group of `ranks`, the same in all of them.
struct slot_layout {
  explicit slot_layout(int ranks) noexcept;
  std::size_t small, staging, posts, fifos, fifo_stride, fifo_bytes, total;
};

/// The slots of a group, as one rank sees them. Used by one thread at a time.
class shm_group {
 public:
  /// `members` are ranks of the host, `slots` where their slots begin, both in the order of the group.
  shm_group(std::shared_ptr<shm_host> host, std::vector<int> members, int rank, std::span<const std::uint64_t> slots);
  shm_group(const shm_group&) = delete;
  shm_group& operator=(const shm_group&) = delete;
  ~shm_group();

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(slots_.size()); }
  [[nodiscard]] shm_host& host() noexcept { return *host_; }
  [[nodiscard]] const shm_host& host() const noexcept { return *host_; }
  [[nodiscard]] const std::shared_ptr<shm_host>& shared_host() const noexcept { return host_; }
  [[nodiscard]] int host_rank(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  /// How errors and control messages call that rank: another name where the group is a part of one whose ranks are
  /// counted otherwise.
  [[nodiscard]] int name_of(int rank) const noexcept { return names_[static_cast<std::size_t>(rank)]; }
  void name(std::vector<int> names) noexcept { names_ = std::move(names); }
  [[nodiscard]] const slot_layout& layout() const noexcept { return layout_; }

  [[nodiscard]] slot_head& slot(int rank) noexcept { return *reinterpret_cast<slot_head*>(start(rank)); }
  [[nodiscard]] const slot_head& slot(int rank) const noexcept { return *reinterpret_cast<slot_head*>(start(rank)); }
  [[nodiscard]] slot_head& mine() noexcept { return *mine_; }
  /// The payload of a contribution that does not fit its line.
  [[nodiscard]] std::byte* small(int rank, std::uint64_t sequence) noexcept {
    return start(rank) + layout_.small + sequence % slot_head::turns * shown_limit;
  }
  [[nodiscard]] std::byte* staging(int rank) noexcept { return start(rank) + layout_.staging; }
  /// The rank whose slot `rank` writes into for the rank `reader` behind it, when it uses a place for that time: it was
  /// that reader's before. To write lines that another wrote last costs a quarter of those that it has read (AMD Zen
  /// 4), and a tenth where their cores share no cache.
  [[nodiscard]] int place_of(int rank, std::uint64_t time, int reader) const noexcept {
    const int behind = static_cast<int>(time % static_cast<unsigned>(size())) * reader % size();
    return rank >= behind ? rank - behind : rank - behind + size();
  }
  [[nodiscard]] post& posts(int from, int to) noexcept {
    return reinterpret_cast<post*>(start(from) + layout_.posts)[to];
  }
  [[nodiscard]] fifo& messages(int from, int to) noexcept {
    return *reinterpret_cast<fifo*>(start(from) + layout_.fifos + static_cast<std::size_t>(to) * layout_.fifo_stride);
  }

  /// After something was written that a peer may wait for: wakes it if it sleeps.
  void wake(int rank) noexcept {
    make_visible();
    if (auto& wakeup_word = slot(rank).asleep; wakeup_word.load(std::memory_order_relaxed) != 0) ring(wakeup_word);
  }
  void wake_all() noexcept {
    make_visible();
    for (int r = 0; r < size(); ++r) {
      if (auto& wakeup_word = slot(r).asleep; r != rank_ && wakeup_word.load(std::memory_order_relaxed) != 0)
        ring(wakeup_word);
    }
  }

  /// Sleep in two steps, so that nothing is missed in between. The first call only announces it: the caller looks once
  /// more at what it waits for. A second call without news sleeps until a peer wakes this rank, or until the time.
  void wait(clock::time_point until);

  /// A peer that has ended and did not say why, or that it left; -1 for none. Each is found once. A system call a peer.
  [[nodiscard]] int find_gone();

  /// Memory for a rank's slot in a new group: its offset in that rank's memory. It says what others are to know before
  /// the group is made.
  [[nodiscard]] static std::uint64_t allocate_slot(segment& memory, int ranks);

 private:
  [[nodiscard]] std::byte* start(int rank) const noexcept { return slots_[static_cast<std::size_t>(rank)]; }
  void make_visible() const noexcept {
    if (!asymmetric_) std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  static void ring(std::atomic<std::uint32_t>& wakeup_word) noexcept;

  std::shared_ptr<shm_host> host_;
  std::vector<int> members_;
  std::vector<int> names_;
  int rank_;
  slot_layout layout_;
  std::vector<std::byte*> slots_;
  slot_head* mine_;
  bool asymmetric_ = true;  // sleepers make the others' writes visible, if all can
  std::vector<bool> found_gone_;
};

}}}  // namespace muster::v0::detail
