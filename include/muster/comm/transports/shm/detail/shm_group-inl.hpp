#pragma once

#include <muster/comm/transports/shm/shm_group.hpp>

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sys/syscall.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <ctime>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t smallest_fifo = std::size_t{16} << 10;
inline constexpr std::size_t largest_fifo = std::size_t{2} << 20;

// A rank that is about to sleep must see all writes that a peer made before the peer loaded the wakeup word. Either
// each peer issues a fence after every write, which costs a tenth of a microsecond each, or the sleeper makes the
// system issue a fence in every thread of the job (membarrier). The membarrier costs the sleeper some microseconds,
// once, when the sleeper has no work anyway.
//
// Returns true if this process is registered for the membarrier. Each process has to register.
inline bool can_be_asymmetric() noexcept {
  static const bool registered = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return registered;
}

MUSTER_INLINE slot_layout::slot_layout(int rank_count) noexcept {
  const auto n = static_cast<std::size_t>(rank_count);
  // Each ordered pair of ranks has a ring. A ring is so large that its bytes have left a second-level cache when their
  // place is reused: a write to a line that the peer has just read costs the most. Rings are smaller in a larger group,
  // so that all rings together take at most 64 MiB among up to 64 ranks.
  fifo_bytes = std::clamp(std::bit_floor((std::size_t{64} << 20) / (n * n)), smallest_fifo, largest_fifo);
  fifo_stride = sizeof(fifo) + fifo_bytes;
  small = round_up(sizeof(slot_head), 4096);
  staging = small + slot_head::contribution_count * published_limit;
  mailboxes = staging + staging_bytes(n);
  fifos = round_up(mailboxes + n * sizeof(control_mailbox), 4096);
  total = round_up(fifos + n * fifo_stride, 4096);
}

MUSTER_INLINE std::uint64_t shm_group::allocate_slot(segment& memory, int rank_count) {
  const slot_layout layout(rank_count);
  void* const slot = memory.allocate(layout.total, cache_line);
  // The memory may have been used before, so the fields are cleared. The payload areas between the fields need no
  // initial content.
  std::memset(slot, 0, layout.small);
  std::memset(static_cast<std::byte*>(slot) + layout.mailboxes, 0, layout.fifos - layout.mailboxes);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank_count); ++i)
    std::memset(static_cast<std::byte*>(slot) + layout.fifos + i * layout.fifo_stride, 0, sizeof(fifo));
  auto& head = *static_cast<slot_head*>(slot);
  head.can_be_asymmetric = can_be_asymmetric();
  return memory.offset_of(slot);
}

MUSTER_INLINE shm_group::shm_group(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                                   std::span<const std::uint64_t> slots)
    : host_(std::move(host)),
      members_(std::move(members)),
      rank_(rank),
      layout_(static_cast<int>(members_.size())),
      reported_ended_(members_.size(), false),
      watched_(members_.size()) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    slots_.push_back(host_->at(members_[r], slots[r]));
    reported_ranks_.push_back(static_cast<int>(r));
    asymmetric_ = asymmetric_ && slot(static_cast<int>(r)).can_be_asymmetric;
  }
  mine_ = &slot(rank);
}

MUSTER_INLINE shm_group::~shm_group() {
  // This rank touches no slot after this loop. Slower ranks may still read this rank's slot, so its memory is released
  // later.
  for (int r = 0; r < size(); ++r) slot(r).leavers.fetch_add(1, std::memory_order_acq_rel);
  host_->retire({slot_address(rank_), layout_.total, &mine_->leavers, static_cast<std::uint32_t>(size())});
}

MUSTER_INLINE void shm_group::wake_sleeper(std::atomic<std::uint32_t>& wakeup_word) noexcept {
  if (wakeup_word.exchange(0, std::memory_order_acq_rel) != 0)
    (void)::syscall(SYS_futex, &wakeup_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

MUSTER_INLINE void shm_group::wait(clock::time_point deadline) {
  auto& wakeup_word = mine_->asleep;
  if (wakeup_word.load(std::memory_order_relaxed) == 0) {
    wakeup_word.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    (void)::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    return;
  }
  const auto remaining = std::min<std::chrono::nanoseconds>(
      deadline - clock::now(), std::chrono::duration_cast<clock::duration>(shm_timing::longest_sleep));
  if (remaining.count() <= 0) return;
  const timespec limit{0, static_cast<long>(remaining.count())};  // at most `longest_sleep`, less than a second
  (void)::syscall(SYS_futex, &wakeup_word, FUTEX_WAIT, 1, &limit, nullptr, 0);
  wakeup_word.store(0, std::memory_order_relaxed);
}

MUSTER_INLINE int shm_group::find_ended_peer() {
  // One system call for all peers: each rank of many looks after all others, many times a second.
  for (int r = 0; r < size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    const bool is_watched = r != rank_ && !reported_ended_[index];
    watched_[index] = {is_watched ? host_->process_descriptor(host_rank(r)) : -1, POLLIN, 0};
  }
  const int ready = ::poll(watched_.data(), watched_.size(), 0);
  if (ready == 0) return -1;
  for (int r = 0; r < size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (watched_[index].fd < 0) continue;
    // poll refuses more entries than this process may have descriptors
    const bool has_ended = ready > 0 ? (watched_[index].revents & POLLIN) != 0 : host_->ended(host_rank(r));
    if (!has_ended) continue;
    const control_mailbox& mailbox = mailboxes(r, rank_);
    const std::uint64_t written = mailbox.written.load(std::memory_order_acquire);
    // unread control messages are delivered first
    if (written != mailbox.read.load(std::memory_order_relaxed)) continue;
    reported_ended_[index] = true;
    const bool has_reported_end =
        written > 0 && mailbox.ring[(written - 1) % control_mailbox::capacity].type != control_message::kind::position;
    if (!has_reported_end) return r;
  }
  return -1;
}

}}}  // namespace muster::v0::detail
