#include "shm_group.hpp"

#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>

#include <algorithm>
#include <bit>
#include <climits>
#include <ctime>

#include "../../../core/round_up.hpp"
#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::size_t smallest_fifo = std::size_t{16} << 10;
constexpr std::size_t largest_fifo = std::size_t{2} << 20;

// A rank that announces its sleep must see all that others wrote before they looked whether it sleeps. Either they put
// a fence behind every write, a tenth of a microsecond each, or the sleeper has the system put one into every thread
// of the job (membarrier), which costs it some microseconds, once, when it has nothing to do anyway.
//
// To be able to do so, each process has to have registered.
bool can_be_asymmetric() noexcept {
  static const bool done = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return done;
}

}  // namespace

slot_layout::slot_layout(int ranks) noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  // All pairs have a ring, of as many bytes as leave a second-level cache before their turn comes again: to write where
  // the other has just read costs the most. Smaller ones where there are many, which are 64 MiB together.
  fifo_bytes = std::clamp(std::bit_floor((std::size_t{64} << 20) / (n * n)), smallest_fifo, largest_fifo);
  fifo_stride = sizeof(fifo) + fifo_bytes;
  small = round_up(sizeof(slot_head), 4096);
  staging = small + slot_head::turns * shown_limit;
  posts = staging + staging_bytes(n);
  fifos = round_up(posts + n * sizeof(post), 4096);
  total = round_up(fifos + n * fifo_stride, 4096);
}

std::uint64_t shm_group::allocate_slot(segment& memory, int ranks) {
  const slot_layout layout(ranks);
  void* const slot = memory.allocate(layout.total, cache_line);
  // Memory that was used before; nothing is expected of what lies between them.
  std::memset(slot, 0, layout.small);
  std::memset(static_cast<std::byte*>(slot) + layout.posts, 0, layout.fifos - layout.posts);
  for (std::size_t i = 0; i < static_cast<std::size_t>(ranks); ++i)
    std::memset(static_cast<std::byte*>(slot) + layout.fifos + i * layout.fifo_stride, 0, sizeof(fifo));
  auto& head = *static_cast<slot_head*>(slot);
  head.can_be_asymmetric = can_be_asymmetric();
  return memory.offset_of(slot);
}

shm_group::shm_group(std::shared_ptr<shm_host> host, std::vector<int> members, int rank,
                     std::span<const std::uint64_t> slots)
    : host_(std::move(host)),
      members_(std::move(members)),
      rank_(rank),
      layout_(static_cast<int>(members_.size())),
      found_gone_(members_.size(), false) {
  for (std::size_t r = 0; r < members_.size(); ++r) {
    slots_.push_back(host_->at(members_[r], slots[r]));
    names_.push_back(static_cast<int>(r));
    asymmetric_ = asymmetric_ && slot(static_cast<int>(r)).can_be_asymmetric;
  }
  mine_ = &slot(rank);
}

shm_group::~shm_group() {
  // The last that this rank does with any slot. Its own may still be read by slower ones; it is given back later.
  for (int r = 0; r < size(); ++r) slot(r).leavers.fetch_add(1, std::memory_order_acq_rel);
  host_->retire({start(rank_), layout_.total, &mine_->leavers, static_cast<std::uint32_t>(size())});
}

void shm_group::ring(std::atomic<std::uint32_t>& wakeup_word) noexcept {
  if (wakeup_word.exchange(0, std::memory_order_acq_rel) != 0)
    (void)::syscall(SYS_futex, &wakeup_word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void shm_group::wait(clock::time_point until) {
  auto& wakeup_word = mine_->asleep;
  if (wakeup_word.load(std::memory_order_relaxed) == 0) {
    wakeup_word.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    (void)::syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    return;
  }
  const auto left = std::min<std::chrono::nanoseconds>(
      until - clock::now(), std::chrono::duration_cast<clock::duration>(shm_timing::longest_sleep));
  if (left.count() <= 0) return;
  const timespec limit{0, static_cast<long>(left.count())};  // below a second
  (void)::syscall(SYS_futex, &wakeup_word, FUTEX_WAIT, 1, &limit, nullptr, 0);
  wakeup_word.store(0, std::memory_order_relaxed);
}

int shm_group::find_gone() {
  for (int r = 0; r < size(); ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (r == rank_ || found_gone_[index] || !host_->ended(host_rank(r))) continue;
    const post& last_words = posts(r, rank_);
    const std::uint64_t written = last_words.written.load(std::memory_order_acquire);
    if (written != last_words.read.load(std::memory_order_relaxed)) continue;  // they come first
    found_gone_[index] = true;
    const bool has_said_why =
        written > 0 && last_words.ring[(written - 1) % post::room].what != control_message::kind::position;
    if (!has_said_why) return r;
  }
  return -1;
}

}}}  // namespace muster::v0::detail
