// The shared control block for a group on a host. Each rank has one slot, in its own memory segment.
//
// A slot consists of a `slot_head`, a slot buffer for small payloads, a staging area, and one `control_mailbox` and one
// `fifo` for each peer (`slot_layout`). All ranks map all slots.
//
// Fields, their writers, their readers, the memory order (store / load), and the time of the store. The owner is the
// rank whose slot holds the field. Plain fields are ordered by the atomic field that the last column names.
//
//   field                  writer             readers          order                when
//   contribution.sequence  owner              peers            release / acquire    after all plain fields of the
//                                                                                   owner's contribution
//   .flags .bytes .offsets owner              peers            plain                before contribution.sequence
//   slot buffer            owner, or the      peers            plain                before the writer's
//                          rank of                                                  contribution.sequence
//                          `rotated_slot`
//   signatures             owner              peers, after a   plain                before contribution.sequence
//                                             mismatch
//   staged                 owner              peers            release / acquire    when the chunks of a round are in
//                                                                                   the staging area
//   staging area           owner, or the      peers            plain                before the writer's `staged`,
//                          rank of                                                  `folded`
//                          `rotated_slot`
//   folded                 staged: owner;     peers            release / acquire    staged: when a round is folded;
//                          direct: the rank                                         direct: when the owner's block
//                          that claimed the                                         is folded
//                          owner's block
//   consumed               owner              root             release / acquire    broadcast: when the owner has
//                                                                                   copied a round from the root
//   claimed                any rank           any rank         relaxed compare-     direct: before a rank folds the
//                                                              and-swap             owner's block
//   finished               owner              peers            release / acquire    when the owner needs nothing of
//                                                                                   the collective any more
//   writing                owner              a peer that      relaxed + seq_cst    1 before and 0 after the owner
//                                             cancels          fence, release /     writes into registered buffers
//                                                              acquire              of peers
//   revoked                owner              peers            seq_cst / seq_cst    when the owner cancels a collective
//   core                   owner              all ranks        relaxed / relaxed    before each contribution, if
//                                                                                   oversubscribed
//   can_be_asymmetric      owner              all ranks        plain                before the owner publishes the
//                                                                                   offset of its slot
//   arrivals               peers: a bit;      owner            acq_rel or /         after bytes are in a ring for the
//                          owner: 0                            acq_rel exchange     owner; in a large group only
//   asleep                 owner: 1 and 0;    owner, peers     seq_cst, acq_rel     1 before the owner sleeps; 0 by the
//                          peers: 0                            exchange / relaxed   first peer that wakes the owner
//   control_messages       peers              owner            release add /        after each control message for the
//                                                              acquire              owner
//   leavers                all ranks          owner            acq_rel add /        when a rank destroys its group
//                                                              acquire
//   mailbox.written        owner (sender)     receiver         release / acquire    after a message is in `ring`
//   mailbox.read           receiver           owner (sender)   release / acquire    after a message is copied out
//   fifo.head              owner (sender)     receiver         release / acquire    after bytes are in the ring;
//                                                                                   `severed` after a failed copy
//   fifo.tail              receiver           owner (sender)   release / acquire    after bytes are copied out
//
// Invariants:
// - A rank writes contribution number n only when all ranks have finished collective n -
// `slot_head::contribution_count`.
// - No rank writes into a registered buffer of a rank that has set `revoked`: a writer sets `writing`, then loads
// `revoked`. The
//   owner sets `revoked`, then waits until no rank has `writing` set. Both sides use seq_cst, so at least one side
//   detects the other. A writer that stays stopped for longer than `shm_timing::peer_write` is not awaited: the owner
//   then detaches the output buffer from the segment. `revoked` does not protect slots: peers may write there until
//   `leavers` equals the size of the group.
// - No rank touches a slot after the rank has raised `leavers` in the slot. The owner reuses the memory when `leavers`
//   equals the size of the group.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/transport.hpp>

#include <muster/comm/transports/shm/host.hpp>

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::size_t cache_line = 64;
/// Distance in bytes between fields that different ranks write, and between a field that one rank writes and a field
/// that other ranks poll. Processors prefetch the neighbours of a cache line, and a rank that writes a line which
/// another rank has fetched must first invalidate the copy of the other rank.
inline constexpr std::size_t false_sharing_distance = 256;
inline constexpr std::size_t small_limit = 8192;  ///< Largest payload, in bytes, of a small collective.
/// Largest payload, in bytes, that ranks publish in their slot buffers when no rank's buffer is registered. Such a copy
/// costs less than one more synchronisation.
inline constexpr std::size_t published_limit = std::size_t{128} << 10;
/// Returns the size in bytes of the staging area, through which a rank passes large private buffers. The area is so
/// large that data which peers have read has left their second-level caches when its place is reused. The area is
/// smaller in a larger group, since each rank has one.
[[nodiscard]] constexpr std::size_t staging_bytes(std::size_t rank_count) noexcept {
  return std::max((std::size_t{8} << 20) / rank_count / 4096 * 4096, std::size_t{2} << 20);
}

/// A rank's contribution to a collective. The sequence is written last: a rank that loads the new sequence
/// sees the other fields. A small payload is stored in the same cache line as the sequence and needs no second memory
/// access.
struct alignas(false_sharing_distance) contribution {
  static constexpr std::size_t inline_limit = 48;
  struct buffer_offsets {  // offsets of the buffers in the rank's segment, if the buffers are registered
    std::uint64_t in;
    std::uint64_t out;
  };
  // registered: the buffer is in the rank's segment, and peers access it there
  // input_in_slot: the rank has copied its input to the slot buffer
  enum : std::uint32_t { registered_in = 1, registered_out = 2, input_in_slot = 4 };

  std::atomic<std::uint64_t> sequence;  // see `sequence_word`
  std::uint32_t flags;
  union {
    alignas(16) std::byte bytes[inline_limit];
    buffer_offsets offsets;
  };
};

/// Returns the word that identifies a contribution: the low half of the number of the collective (counted from 1 among
/// the native collectives of the group), and a hash for its signature. The full signature is in slot_head::signatures.
constexpr std::uint64_t sequence_word(std::uint64_t number, std::uint32_t signature_hash) noexcept {
  return number << 32 | signature_hash;
}

/// Number of bits for the step in a `step_word`. With this width neither the collective numbers nor the steps repeat
/// within half a year at a million calls a second.
inline constexpr std::uint64_t step_bits = 20;
/// Returns the word for a step of a large collective. Words increase with the collective and with the step.
constexpr std::uint64_t step_word(std::uint64_t number, std::uint64_t step) noexcept {
  return (number << step_bits) + step;
}

/// The control messages from one rank to another. The mailbox is in the sender's slot.
struct control_mailbox {
  static constexpr std::uint64_t capacity = 8;
  alignas(cache_line) std::atomic<std::uint64_t> written;
  alignas(cache_line) std::atomic<std::uint64_t> read;
  alignas(cache_line) control_message ring[capacity];
};

/// The messages from one rank to another: a ring of bytes in the sender's slot.
struct fifo {
  static constexpr std::uint64_t severed = ~std::uint64_t{0};  // in place of `head`: the sender cannot continue
  alignas(cache_line) std::atomic<std::uint64_t> head;         // total bytes written
  alignas(cache_line) std::atomic<std::uint64_t> tail;         // total bytes read
  [[nodiscard]] std::byte* bytes() noexcept { return reinterpret_cast<std::byte*>(this + 1); }
};

/// The fixed part of a slot; see the table above. Only the slot's owner writes a line, except `arrivals`, the line of
/// the wakeup word, and `folded` and `claimed` where ranks fold the blocks of peers.
struct slot_head {
  // Number of contributions that a slot holds. A rank may be this many collectives ahead of the ranks that still read
  // its contributions; the root of consecutive broadcasts usually is ahead.
  static constexpr std::uint64_t contribution_count = 8;
  contribution contributions[contribution_count];
  alignas(false_sharing_distance) collective_signature signatures[contribution_count];
  // Steps of a large collective (`step_word`): rounds whose chunks are staged, rounds that are folded, rounds whose
  // chunks this rank has copied from the root. In a direct collective the only step is this rank's block: any rank
  // claims and folds the block.
  alignas(false_sharing_distance) std::atomic<std::uint64_t> staged;
  std::atomic<std::uint64_t> folded;
  std::atomic<std::uint64_t> consumed;
  alignas(false_sharing_distance) std::atomic<std::uint64_t> claimed;
  // number of the last collective that this rank has finished
  alignas(false_sharing_distance) std::atomic<std::uint64_t> finished;
  std::atomic<std::uint32_t> writing;  // 1 while this rank writes into registered buffers of peers
  std::atomic<std::uint32_t> core;     // this rank's core at its last contribution, if oversubscribed
  // sleepers can make this rank's writes visible (membarrier); otherwise each writer issues a fence
  bool can_be_asymmetric;
  // bit r % 64 is set after rank r has written into its ring for this rank, see `shm_group::marks_arrivals`
  alignas(false_sharing_distance) std::atomic<std::uint64_t> arrivals;
  // wakeup word: a peer clears it and wakes this rank
  alignas(false_sharing_distance) std::atomic<std::uint32_t> asleep;
  std::atomic<std::uint32_t> control_messages;  // number of control messages sent to this rank
  std::atomic<std::uint32_t> leavers;           // number of ranks that no longer touch this slot
  // 1 when this rank has cancelled a collective: peers must not write into its registered buffers any
  // more. Peers load `revoked`
  // before each write there, so the field is in a line that is seldom written.
  std::atomic<std::uint32_t> revoked;
};

/// The layout of the slots in a group of `ranks` ranks, the same in all slots, in bytes: the offsets of the parts, then
/// the sizes of a fifo with its ring, of a ring, and of the slot.
struct slot_layout {
  explicit slot_layout(int rank_count) noexcept;
  std::size_t small, staging, mailboxes, fifos, fifo_stride, fifo_bytes, total;
};

/// The slots in a group, as a rank accesses them. Used by one thread at a time.
class shm_group {
 public:
  /// Maps the slots. `members` are ranks of the host, and `slots` are the offsets of their slots, both in the order of
  /// the group.
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
  /// Returns the number by which errors and control messages name that rank. The number differs from `rank` where this
  /// group is part of a larger group.
  [[nodiscard]] int reported_rank(int rank) const noexcept { return reported_ranks_[static_cast<std::size_t>(rank)]; }
  void set_reported_ranks(std::vector<int> ranks) noexcept { reported_ranks_ = std::move(ranks); }
  [[nodiscard]] const slot_layout& layout() const noexcept { return layout_; }

  [[nodiscard]] slot_head& slot(int rank) noexcept { return *reinterpret_cast<slot_head*>(slot_address(rank)); }
  [[nodiscard]] const slot_head& slot(int rank) const noexcept {
    return *reinterpret_cast<slot_head*>(slot_address(rank));
  }
  [[nodiscard]] slot_head& mine() noexcept { return *mine_; }
  /// Returns the slot buffer for a payload that does not fit the contribution's line.
  [[nodiscard]] std::byte* slot_buffer(int rank, std::uint64_t sequence) noexcept {
    return slot_address(rank) + layout_.small + sequence % slot_head::contribution_count * published_limit;
  }
  [[nodiscard]] std::byte* staging(int rank) noexcept { return slot_address(rank) + layout_.staging; }
  /// Returns the rank whose slot `rank` writes into, for the reader that is `reader` ranks after `rank`, in the given
  /// turn. In the turn before, another rank wrote that place and `rank` read it. A write to a line that another rank
  /// wrote last costs a quarter of a write to a line that the other rank has read (AMD Zen 4), and a tenth where the
  /// two cores share no cache.
  [[nodiscard]] int rotated_slot(int rank, std::uint64_t turn, int reader) const noexcept {
    const int shift = static_cast<int>(turn % static_cast<unsigned>(size())) * reader % size();
    return rank >= shift ? rank - shift : rank - shift + size();
  }
  [[nodiscard]] control_mailbox& mailboxes(int sender, int receiver) noexcept {
    return reinterpret_cast<control_mailbox*>(slot_address(sender) + layout_.mailboxes)[receiver];
  }
  [[nodiscard]] fifo& message_ring(int sender, int receiver) noexcept {
    return *reinterpret_cast<fifo*>(slot_address(sender) + layout_.fifos +
                                    static_cast<std::size_t>(receiver) * layout_.fifo_stride);
  }

  /// Returns true if senders mark in `slot_head::arrivals` that they have written into a ring. In a large group a
  /// receiver then looks only at the rings of these senders; in a small group the rings cost less than the marks.
  [[nodiscard]] bool marks_arrivals() const noexcept { return size() > 16; }
  /// Marks that this rank has written into its ring for the receiver.
  void mark_arrival(int receiver) noexcept {
    if (marks_arrivals()) slot(receiver).arrivals.fetch_or(arrival_bit(rank_), std::memory_order_acq_rel);
  }
  /// Returns the marks since the last call, and clears them.
  [[nodiscard]] std::uint64_t take_arrivals() noexcept {
    auto& arrivals = mine_->arrivals;
    if (arrivals.load(std::memory_order_relaxed) == 0) return 0;
    return arrivals.exchange(0, std::memory_order_acq_rel);
  }
  /// Returns the mark of a sender, which other senders share in a group of more than 64 ranks.
  [[nodiscard]] static constexpr std::uint64_t arrival_bit(int sender) noexcept {
    return std::uint64_t{1} << (static_cast<unsigned>(sender) % 64);
  }
  /// Wakes a peer that sleeps. Called after each write that the peer may wait for.
  void wake(int rank) noexcept {
    make_visible();
    if (auto& wakeup_word = slot(rank).asleep; wakeup_word.load(std::memory_order_relaxed) != 0)
      wake_sleeper(wakeup_word);
  }
  /// Wakes all peers that sleep.
  void wake_all() noexcept {
    make_visible();
    for (int r = 0; r < size(); ++r) {
      if (auto& wakeup_word = slot(r).asleep; r != rank_ && wakeup_word.load(std::memory_order_relaxed) != 0)
        wake_sleeper(wakeup_word);
    }
  }

  /// Sleeps in two calls, so that no wake-up is lost. The first call only sets the wakeup word: the caller then checks
  /// once more the condition that it waits for. A second call sleeps until a peer wakes this rank, or until the
  /// deadline, but no longer than `shm_timing::longest_sleep`.
  void wait(clock::time_point deadline);

  /// Returns a peer whose process has ended without a message about its failure or departure; -1 if there is none. Each
  /// peer is returned once, after its control messages are read. Costs one system call for each peer.
  [[nodiscard]] int find_ended_peer();

  /// Allocates a rank's slot for a new group and returns its offset in that rank's segment. The offset is exchanged
  /// before the group is made.
  [[nodiscard]] static std::uint64_t allocate_slot(segment& memory, int rank_count);

 private:
  [[nodiscard]] std::byte* slot_address(int rank) const noexcept { return slots_[static_cast<std::size_t>(rank)]; }
  // A sleeper's membarrier orders the processors, but not the compiler.
  void make_visible() const noexcept {
    if (asymmetric_)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    else
      std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  static void wake_sleeper(std::atomic<std::uint32_t>& wakeup_word) noexcept;

  std::shared_ptr<shm_host> host_;
  std::vector<int> members_;
  std::vector<int> reported_ranks_;
  int rank_;
  slot_layout layout_;
  std::vector<std::byte*> slots_;
  slot_head* mine_;
  bool asymmetric_ = true;  // set if all ranks can be asymmetric: `wait` then replaces the fence of each write
  std::vector<bool> reported_ended_;
  std::vector<pollfd> watched_;  // of `find_ended_peer`, which allocates nothing
};

}}}  // namespace muster::v0::detail
