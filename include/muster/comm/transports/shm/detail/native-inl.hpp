// The common parts of the native collectives, and the small mode.
#pragma once

#include <muster/comm/transports/shm/native.hpp>

#include <sched.h>

#include <algorithm>
#include <cstring>

#include <muster/comm/comm_timing.hpp>
#include <muster/core/copy.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline std::uint32_t hash_of(const collective_signature& signature) noexcept {
  const auto packed = static_cast<std::uint64_t>(static_cast<std::uint32_t>(signature.root)) << 32 |
                      static_cast<std::uint64_t>(signature.kind) << 24 |
                      static_cast<std::uint64_t>(signature.type) << 16 | static_cast<std::uint64_t>(signature.op) << 8 |
                      static_cast<std::uint64_t>(signature.algorithm);
  const std::uint64_t mixed =
      (signature.sequence * 0x9e3779b97f4a7c15u ^ signature.count) * 0xbf58476d1ce4e5b9u ^ packed * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>(mixed ^ mixed >> 32);
}

template <class Word>
void copy_by_two_words(std::byte* out, const std::byte* in, std::size_t bytes) {
  Word first;
  Word last;
  std::memcpy(&first, in, sizeof first);
  std::memcpy(&last, in + bytes - sizeof last, sizeof last);
  std::memcpy(out, &first, sizeof first);
  std::memcpy(out + bytes - sizeof last, &last, sizeof last);
}

// Copies `bytes` bytes. A copy that fits one or two registers avoids a function call.
inline void copy(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 16 || bytes < 4) {
    copy_bytes(out, in, bytes);
  } else if (bytes >= 8) {
    copy_by_two_words<std::uint64_t>(out, in, bytes);
  } else {
    copy_by_two_words<std::uint32_t>(out, in, bytes);
  }
}

// ---- contributions ----

MUSTER_INLINE bool shm_native::all_finished(std::uint64_t sequence) {
  if (all_finished_ >= sequence) return true;
  std::uint64_t least = sequence_;
  for (int p = 0; p < shm_.size(); ++p) {
    if (p != shm_.rank()) least = std::min(least, shm_.slot(p).finished.load(std::memory_order_acquire));
  }
  all_finished_ = least;
  return least >= sequence;
}

// Returns true if this rank may write its contribution: all ranks have finished the collective whose contribution had
// the same place.
MUSTER_INLINE bool shm_native::slot_is_free() {
  return sequence_ <= slot_head::contribution_count || all_finished(sequence_ - slot_head::contribution_count);
}

MUSTER_INLINE void shm_native::publish_core() noexcept {
  if (!shm_.host().oversubscribed()) return;
  const auto core = static_cast<std::uint32_t>(::sched_getcpu());
  if (auto& published = shm_.mine().core; published.load(std::memory_order_relaxed) != core)
    published.store(core, std::memory_order_relaxed);
  if (!cores_.is_due()) return;
  const auto last_cores = cores_.last_cores();
  for (std::size_t p = 0; p < last_cores.size(); ++p)
    last_cores[p] = shm_.slot(static_cast<int>(p)).core.load(std::memory_order_relaxed);
  cores_.spread(shm_.rank());
}

MUSTER_INLINE bool shm_native::waits_for_this_core() const {
  if (call_ == nullptr) return true;
  const auto this_core = static_cast<std::uint32_t>(::sched_getcpu());
  for (int p = 0; p < shm_.size(); ++p) {
    const slot_head& slot = shm_.slot(p);
    if (p == shm_.rank() || slot.core.load(std::memory_order_relaxed) != this_core) continue;
    // A rank that waits for the same root as this rank does not need the core, unless that rank is behind.
    const bool is_behind = slot.finished.load(std::memory_order_relaxed) + 1 < sequence_;
    if (has_contributed_ && plan_.awaits_root && p != call_->root && !is_behind) continue;
    const auto number = static_cast<std::uint32_t>(
        slot.contributions[contribution_index()].sequence.load(std::memory_order_relaxed) >> 32);
    const bool has_contributed = plan_.is_small && number == static_cast<std::uint32_t>(sequence_);
    if (!has_contributed) return true;
  }
  return false;
}

MUSTER_INLINE void shm_native::publish_small(const std::byte* small, std::size_t bytes) {
  auto& mine = shm_.mine();
  contribution& own = mine.contributions[contribution_index()];
  publish_core();
  mine.signatures[contribution_index()] = call_->signature();
  if (bytes > 0) copy(bytes <= contribution::inline_limit ? own.bytes : slot_buffer_of(shm_.rank()), small, bytes);
  own.sequence.store(sequence_word(sequence_, signature_hash_), std::memory_order_release);
  shm_.wake_all();
}

MUSTER_INLINE void shm_native::publish_buffers() {
  auto& mine = shm_.mine();
  contribution& own = mine.contributions[contribution_index()];
  publish_core();
  mine.signatures[contribution_index()] = call_->signature();
  own.flags = 0;
  auto& memory = shm_.host().own();
  const auto offset_of_buffer = [&](const std::byte* data, std::size_t bytes, std::uint32_t flag) -> std::uint64_t {
    if (data == nullptr || !memory.holds(data, bytes)) return 0;
    own.flags |= flag;
    return memory.offset_of(data);
  };
  own.offsets.in = offset_of_buffer(call_->in, bytes_in(), contribution::registered_in);
  own.offsets.out = offset_of_buffer(call_->out, bytes_out(), contribution::registered_out);
  if (plan_.copies_input && (own.flags & (contribution::registered_in | contribution::registered_out)) == 0) {
    copy_bytes(slot_buffer_of(shm_.rank()), call_->in, plan_.contributed);
    own.flags |= contribution::input_in_slot;
  }
  own.sequence.store(sequence_word(sequence_, signature_hash_), std::memory_order_release);
  shm_.wake_all();
}

// Returns this rank's input size in bytes: the whole input, or its block.
MUSTER_INLINE std::size_t shm_native::bytes_in() const noexcept {
  if (call_->kind == collective::allgather) return own_block().size();
  return call_->count * call_->element_size;
}

// Returns this rank's output size in bytes: the whole output, or its block.
MUSTER_INLINE std::size_t shm_native::bytes_out() const noexcept {
  if (call_->kind == collective::reduce_scatter) return own_block().size();
  return call_->count * call_->element_size;
}

MUSTER_INLINE bool shm_native::contributed(int peer) {
  const contribution& peer_contribution = shm_.slot(peer).contributions[contribution_index()];
  const std::uint64_t word = peer_contribution.sequence.load(std::memory_order_acquire);
  if (word == sequence_word(sequence_, signature_hash_)) {
    // A peer that is ahead has published its next contribution too: the prefetch overlaps with this collective.
    __builtin_prefetch(&shm_.slot(peer).contributions[(sequence_ + 1) % slot_head::contribution_count]);
    return true;
  }
  if (static_cast<std::uint32_t>(word >> 32) == static_cast<std::uint32_t>(sequence_)) throw_mismatch(peer);
  return false;
}

MUSTER_INLINE bool shm_native::all_contributed() {
  for (; next_peer_ < shm_.size(); ++next_peer_) {
    if (next_peer_ != shm_.rank() && !contributed(next_peer_)) return false;
  }
  // a rank that has contributed to this collective has finished the previous one
  all_finished_ = std::max(all_finished_, sequence_ - 1);
  return true;
}

MUSTER_INLINE void shm_native::throw_mismatch(int peer) {
  request own_call;
  own_call.signature = call_->signature();
  check_arrival(own_call, shm_.reported_rank(peer), shm_.slot(peer).signatures[contribution_index()], 0);
  throw mismatch_error("the ranks disagree about collective " + std::to_string(call_->signature().sequence) +
                       " of the group (rank " + std::to_string(shm_.reported_rank(peer)) +
                       " is in the same collective, but made a different call before); every rank must make the same "
                       "calls in the same order");
}

MUSTER_INLINE void shm_native::publish_finished() noexcept {
  shm_.mine().finished.store(sequence_, std::memory_order_release);
  shm_.wake_all();
}

// ---- requests ----

MUSTER_INLINE shm_native::start_result shm_native::start(const collective_call& call) {
  call_ = &call;
  plan_ = plan_small();
  const collective kind = call.kind;
  if (!plan_.is_small &&
      (kind == collective::gather || kind == collective::scatter || kind == collective::all_to_all)) {
    call_ = nullptr;
    return start_result::unsupported;
  }
  ++sequence_;
  // The hash includes all earlier calls: otherwise, in a broadcast where two ranks pass themselves as the root, neither
  // root would detect the mismatch.
  signature_hash_ = hash_of(call.signature()) + 31 * signature_hash_;
  next_peer_ = 0;
  has_contributed_ = false;
  if (plan_.is_small) {
    if (!test_small()) return start_result::pending;
    call_ = nullptr;
    return start_result::complete;
  }
  steps_.emplace(pool_);
  body_ = kind == collective::broadcast ? broadcast(*steps_, *this) : run_reduce_family(*steps_, *this);
  steps_->start(body_.handle());
  return start_result::pending;
}

MUSTER_INLINE bool shm_native::test(request& req) {
  if (req.owner == nullptr) return true;
  if (plan_.is_small) {
    if (!test_small()) return false;
  } else {
    steps_->advance();
    if (!body_.finished()) return false;
    const auto failure = body_.failure();
    body_.reset();
    if (failure) std::rethrow_exception(failure);
  }
  req.owner = nullptr;
  call_ = nullptr;  // the caller may destroy the call now
  return true;
}

MUSTER_INLINE void shm_native::cancel() noexcept {
  body_.reset();
  shm_.mine().revoked.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto deadline = deadline_after(shm_timing::peer_write);
  bool peer_is_stuck = false;
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank()) continue;
    const auto is_writing = [&] { return shm_.slot(p).writing.load(std::memory_order_acquire) != 0; };
    while (is_writing() && !shm_.host().ended(shm_.host_rank(p)) && clock::now() < deadline) sched_yield();
    peer_is_stuck = peer_is_stuck || (is_writing() && !shm_.host().ended(shm_.host_rank(p)));
  }
  auto& own = shm_.host().own();
  if (!peer_is_stuck || call_ == nullptr || call_->out == nullptr || !own.holds(call_->out, bytes_out())) return;
  // A stopped peer may resume later and write. Its writes then go to memory that this rank no longer uses.
  own.detach(call_->out, bytes_out());
}

// ---- small ----

MUSTER_INLINE shm_native::small_plan shm_native::plan_small() const {
  const collective kind = call_->kind;
  const bool at_root = shm_.rank() == call_->root;
  const bool from_root = kind == collective::broadcast || kind == collective::scatter;
  const bool to_root = kind == collective::reduce || kind == collective::gather;
  const bool in_pieces = kind == collective::scatter || kind == collective::all_to_all;
  const bool in_blocks = kind == collective::allgather;
  const std::size_t bytes = call_->count * call_->element_size * (in_pieces ? size() : 1);
  const std::size_t largest = in_blocks ? largest_block() : bytes;
  std::size_t publish_up_to = kind == collective::reduce || in_blocks ? published_limit : 0;
  // Two ranks read as many bytes in this mode as in the staged mode, with one synchronisation less. More ranks read
  // more bytes.
  if (kind == collective::allreduce && size() == 2) publish_up_to = published_limit / 2;
  return {.contributed = in_blocks ? own_block().size() : bytes,
          .contributes = from_root ? at_root : !to_root || !at_root,
          .awaits_all = !from_root && (!to_root || at_root),
          .awaits_root = from_root && !at_root,
          .is_small = largest <= small_limit,
          .copies_input = largest <= publish_up_to};
}

MUSTER_INLINE bool shm_native::test_small() {
  if (!has_contributed_) {
    if (plan_.contributes) {
      if (!slot_is_free()) return false;
      publish_small(call_->in, plan_.contributed);
    }
    has_contributed_ = true;
  }
  if (plan_.awaits_all && !all_contributed()) return false;
  if (plan_.awaits_root && !contributed(call_->root)) return false;
  complete_small();
  publish_finished();
  return true;
}

// Returns the slot buffer in which that rank publishes its input, if the input does not fit the contribution's line.
MUSTER_INLINE std::byte* shm_native::slot_buffer_of(int rank) noexcept {
  const collective kind = call_->kind;
  const bool one_way = kind == collective::broadcast || kind == collective::reduce || kind == collective::gather ||
                       kind == collective::scatter;
  // A few lines that only one rank writes are still in its cache when they are used again. In twice as many places
  // the lines would have left the cache. In a group of more than two ranks all ranks read the buffer, so it does not
  // matter which rank writes there next.
  const bool keeps_place = shm_.size() > 2 || (one_way && plan_.is_small);
  const int slot = keeps_place ? rank : shm_.rotated_slot(rank, sequence_ / slot_head::contribution_count, 1);
  return shm_.slot_buffer(slot, sequence_);
}

MUSTER_INLINE const std::byte* shm_native::small_payload(int peer) {
  if (peer == shm_.rank()) return call_->in;
  const contribution& peer_contribution = shm_.slot(peer).contributions[contribution_index()];
  std::size_t bytes = plan_.contributed;
  if (call_->kind == collective::allgather) bytes = blocks_of(nullptr).at(peer).size();
  // A call whose largest piece is not small leaves every piece in the slot's buffer.
  return plan_.is_small && bytes <= contribution::inline_limit ? peer_contribution.bytes : slot_buffer_of(peer);
}

MUSTER_INLINE void shm_native::complete_small() {
  const collective_call& c = *call_;
  const int n = shm_.size();
  const int me = shm_.rank();
  const std::size_t bytes = c.count * c.element_size;
  const auto copy_unless_same = [](std::byte* destination, const std::byte* source, std::size_t size) {
    if (size > 0 && destination != source) copy(destination, source, size);
  };
  const auto fold = [&](std::size_t offset, std::size_t size) {
    if (size == 0) return;
    for (int p = 0; p < n; ++p) peers_in_[static_cast<std::size_t>(p)] = small_payload(p) + offset;
    std::byte* const out[] = {c.out};
    c.reduce.fold(out, peers_in_, size);
  };
  switch (c.kind) {
    case collective::allreduce:
      return fold(0, bytes);
    case collective::reduce:
      if (me == c.root) fold(0, bytes);
      return;
    case collective::reduce_scatter: {
      const block own = blocks_of(nullptr).elements(me);
      return fold(own.first * c.element_size, own.count * c.element_size);
    }
    case collective::broadcast:
      return copy_unless_same(c.out, me == c.root ? c.in : small_payload(c.root), bytes);
    case collective::scatter:
      return copy_unless_same(c.out, small_payload(c.root) + static_cast<std::size_t>(me) * bytes, bytes);
    case collective::gather:
      if (me != c.root) return;
      for (int p = 0; p < n; ++p)
        copy_unless_same(c.out + static_cast<std::size_t>(p) * bytes, small_payload(p), bytes);
      return;
    case collective::allgather:
      for (int p = 0; p < n; ++p) {
        const block part = blocks_of(nullptr).elements(p);
        copy_unless_same(c.out + part.first * c.element_size, small_payload(p), part.count * c.element_size);
      }
      return;
    case collective::all_to_all:
      for (int p = 0; p < n; ++p)
        copy_unless_same(c.out + static_cast<std::size_t>(p) * bytes,
                         small_payload(p) + static_cast<std::size_t>(me) * bytes, bytes);
      return;
    default:
      return;
  }
}

}}}  // namespace muster::v0::detail
