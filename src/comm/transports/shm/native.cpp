// What all native collectives have in common, and the small ones.
#include "native.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include <muster/core/error.hpp>

#include "../../../core/copy.hpp"
#include "../../timing.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

std::uint32_t signature_of(const collective_signature& signature) noexcept {
  const auto small = static_cast<std::uint64_t>(static_cast<std::uint32_t>(signature.root)) << 32 |
                     static_cast<std::uint64_t>(signature.kind) << 24 |
                     static_cast<std::uint64_t>(signature.type) << 16 | static_cast<std::uint64_t>(signature.op) << 8 |
                     static_cast<std::uint64_t>(signature.algorithm);
  const std::uint64_t mixed =
      (signature.sequence * 0x9e3779b97f4a7c15u ^ signature.count) * 0xbf58476d1ce4e5b9u ^ small * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>(mixed ^ mixed >> 32);
}

template <class Word>
void copy_ends(std::byte* to, const std::byte* from, std::size_t bytes) {
  Word first;
  Word last;
  std::memcpy(&first, from, sizeof first);
  std::memcpy(&last, from + bytes - sizeof last, sizeof last);
  std::memcpy(to, &first, sizeof first);
  std::memcpy(to + bytes - sizeof last, &last, sizeof last);
}

// What fits a register or two is not worth a call.
void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 16 || bytes < 4) {
    copy_bytes(to, from, bytes);
  } else if (bytes >= 8) {
    copy_ends<std::uint64_t>(to, from, bytes);
  } else {
    copy_ends<std::uint32_t>(to, from, bytes);
  }
}

}  // namespace

// ---- contributions ----

bool shm_native::all_finished(std::uint64_t sequence) {
  if (all_finished_ >= sequence) return true;
  std::uint64_t least = sequence_;
  for (int p = 0; p < shm_.size(); ++p) {
    if (p != shm_.rank()) least = std::min(least, shm_.slot(p).finished.load(std::memory_order_acquire));
  }
  all_finished_ = least;
  return least >= sequence;
}

// The place of this contribution was that of an earlier one.
bool shm_native::may_offer() { return sequence_ <= slot_head::turns || all_finished(sequence_ - slot_head::turns); }

void shm_native::say_where() noexcept {
  if (!shm_.host().oversubscribed()) return;
  const auto core = static_cast<std::uint32_t>(::sched_getcpu());
  if (auto& said = shm_.mine().core; said.load(std::memory_order_relaxed) != core)
    said.store(core, std::memory_order_relaxed);
  if (!cores_.is_due()) return;
  const auto seen = cores_.seen();
  for (std::size_t p = 0; p < seen.size(); ++p)
    seen[p] = shm_.slot(static_cast<int>(p)).core.load(std::memory_order_relaxed);
  cores_.spread(shm_.rank());
}

bool shm_native::waits_for_this_core() const {
  if (call_ == nullptr) return true;
  const auto here = static_cast<std::uint32_t>(::sched_getcpu());
  for (int p = 0; p < shm_.size(); ++p) {
    const slot_head& slot = shm_.slot(p);
    if (p == shm_.rank() || slot.core.load(std::memory_order_relaxed) != here) continue;
    // One that waits for the same root as this rank has no use for the core, unless it is behind.
    const bool is_behind = slot.finished.load(std::memory_order_relaxed) + 1 < sequence_;
    if (has_offered_ && plan_.awaits_root && p != call_->root && !is_behind) continue;
    const auto number =
        static_cast<std::uint32_t>(slot.contributions[turn()].sequence.load(std::memory_order_relaxed) >> 32);
    const bool is_small_and_there = plan_.fits && number == static_cast<std::uint32_t>(sequence_);
    if (!is_small_and_there) return true;
  }
  return false;
}

void shm_native::make_contribution(const std::byte* small, std::size_t bytes) {
  auto& mine = shm_.mine();
  contribution& made = mine.contributions[turn()];
  say_where();
  mine.signatures[turn()] = call_->signature();
  if (bytes > 0) copy(bytes <= contribution::inline_limit ? made.bytes : shown_by(shm_.rank()), small, bytes);
  made.sequence.store(sequence_word(sequence_, signature_hash_), std::memory_order_release);
  shm_.wake_all();
}

void shm_native::make_offer_of_places() {
  auto& mine = shm_.mine();
  contribution& made = mine.contributions[turn()];
  say_where();
  mine.signatures[turn()] = call_->signature();
  made.flags = 0;
  auto& own = shm_.host().own();
  const auto place = [&](const std::byte* data, std::size_t bytes, std::uint32_t flag) -> std::uint64_t {
    if (data == nullptr || !own.holds(data, bytes)) return 0;
    made.flags |= flag;
    return own.offset_of(data);
  };
  made.place.in = place(call_->in, bytes_in(), contribution::registered_in);
  made.place.out = place(call_->out, bytes_out(), contribution::registered_out);
  if (plan_.shows && (made.flags & (contribution::registered_in | contribution::registered_out)) == 0) {
    copy_bytes(shown_by(shm_.rank()), call_->in, plan_.contributed);
    made.flags |= contribution::shown;
  }
  made.sequence.store(sequence_word(sequence_, signature_hash_), std::memory_order_release);
  shm_.wake_all();
}

// What the buffers of this rank hold: all, or its block.
std::size_t shm_native::bytes_in() const noexcept {
  if (call_->kind == collective::allgather) return own_block().size();
  return call_->count * call_->element_size;
}

std::size_t shm_native::bytes_out() const noexcept {
  if (call_->kind == collective::reduce_scatter) return own_block().size();
  return call_->count * call_->element_size;
}

bool shm_native::contributed(int peer) {
  const contribution& theirs = shm_.slot(peer).contributions[turn()];
  const std::uint64_t word = theirs.sequence.load(std::memory_order_acquire);
  if (word == sequence_word(sequence_, signature_hash_)) {
    // A peer that is ahead has made the next one too: let it come while we work on this one.
    __builtin_prefetch(&shm_.slot(peer).contributions[(sequence_ + 1) % slot_head::turns]);
    return true;
  }
  if (static_cast<std::uint32_t>(word >> 32) == static_cast<std::uint32_t>(sequence_)) disagree(peer);
  return false;
}

bool shm_native::all_offered() {
  for (; next_peer_ < shm_.size(); ++next_peer_) {
    if (next_peer_ != shm_.rank() && !contributed(next_peer_)) return false;
  }
  all_finished_ = std::max(all_finished_, sequence_ - 1);  // a rank that is in this one has finished the one before
  return true;
}

void shm_native::disagree(int peer) {
  request wanted;
  wanted.signature = call_->signature();
  check_arrival(wanted, shm_.name_of(peer), shm_.slot(peer).signatures[turn()], 0);
  throw mismatch_error(
      "the ranks disagree about collective " + std::to_string(call_->signature().sequence) + " of the group (rank " +
      std::to_string(shm_.name_of(peer)) +
      " is in the same, but made another call before); every rank must make the same calls in the same order");
}

void shm_native::finish() noexcept {
  shm_.mine().finished.store(sequence_, std::memory_order_release);
  shm_.wake_all();
}

// ---- requests ----

shm_native::begun shm_native::start(const collective_call& call) {
  call_ = &call;
  plan_ = plan_small();
  const collective kind = call.kind;
  if (!plan_.fits && (kind == collective::gather || kind == collective::scatter || kind == collective::all_to_all)) {
    call_ = nullptr;
    return begun::no;
  }
  ++sequence_;
  // With all calls before it: the root of a broadcast does not look at another rank that takes itself for the root.
  signature_hash_ = signature_of(call.signature()) + 31 * signature_hash_;
  next_peer_ = 0;
  has_offered_ = false;
  if (plan_.fits) {
    if (!advance_small()) return begun::yes;
    call_ = nullptr;
    return begun::done;
  }
  steps_.emplace(pool_);
  body_ = kind == collective::broadcast ? broadcast(*steps_, *this) : exchange(*steps_, *this);
  steps_->start(body_.handle());
  return begun::yes;
}

bool shm_native::test(request& r) {
  if (r.owner == nullptr) return true;
  if (plan_.fits) {
    if (!advance_small()) return false;
  } else {
    steps_->advance();
    if (!body_.finished()) return false;
    const auto failure = body_.failure();
    body_.reset();
    if (failure) std::rethrow_exception(failure);
  }
  r.owner = nullptr;
  call_ = nullptr;  // it may live no longer
  return true;
}

void shm_native::cancel() noexcept {
  body_.reset();
  shm_.mine().revoked.store(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const auto until = deadline_after(shm_timing::writer);
  bool stopped = false;
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank()) continue;
    const auto is_writing = [&] { return shm_.slot(p).writing.load(std::memory_order_acquire) != 0; };
    while (is_writing() && !shm_.host().ended(shm_.host_rank(p)) && clock::now() < until) sched_yield();
    stopped = stopped || (is_writing() && !shm_.host().ended(shm_.host_rank(p)));
  }
  auto& own = shm_.host().own();
  if (!stopped || call_ == nullptr || call_->out == nullptr || !own.holds(call_->out, bytes_out())) return;
  // It may go on one day: in memory that this rank does not look at any more.
  own.detach(call_->out, bytes_out());
}

// ---- small ----

shm_native::small_plan shm_native::plan_small() const {
  const collective kind = call_->kind;
  const bool at_root = shm_.rank() == call_->root;
  const bool from_root = kind == collective::broadcast || kind == collective::scatter;
  const bool to_root = kind == collective::reduce || kind == collective::gather;
  const bool in_pieces = kind == collective::scatter || kind == collective::all_to_all;
  const bool in_blocks = kind == collective::allgather;
  const std::size_t bytes = call_->count * call_->element_size * (in_pieces ? size() : 1);
  const std::size_t most = in_blocks ? blocks_of(nullptr).at(shm_.size() - 1).size() : bytes;
  std::size_t shown = kind == collective::reduce || in_blocks ? shown_limit : 0;
  // Two ranks read as much so as in blocks, with one synchronisation less; more ranks read more.
  if (kind == collective::allreduce && size() == 2) shown = shown_limit / 2;
  return {.contributed = in_blocks ? own_block().size() : bytes,
          .contributions = from_root ? at_root : !to_root || !at_root,
          .awaits_all = !from_root && (!to_root || at_root),
          .awaits_root = from_root && !at_root,
          .fits = most <= small_limit,
          .shows = most <= shown};
}

bool shm_native::advance_small() {
  if (!has_offered_) {
    if (plan_.contributions) {
      if (!may_offer()) return false;
      make_contribution(call_->in, plan_.contributed);
    }
    has_offered_ = true;
  }
  if (plan_.awaits_all && !all_offered()) return false;
  if (plan_.awaits_root && !contributed(call_->root)) return false;
  complete_small();
  finish();
  return true;
}

// Where that rank shows what it contributes, if it does not fit its line.
std::byte* shm_native::shown_by(int rank) noexcept {
  const collective kind = call_->kind;
  const bool one_way = kind == collective::broadcast || kind == collective::reduce || kind == collective::gather ||
                       kind == collective::scatter;
  // A few lines that one rank alone writes are still in its cache when their turn comes again: in twice as many places
  // they would not be. More than two ranks all read it: which of them writes there next is the same.
  const bool stays = shm_.size() > 2 || (one_way && plan_.fits);
  const int place = stays ? rank : shm_.place_of(rank, sequence_ / slot_head::turns, 1);
  return shm_.small(place, sequence_);
}

const std::byte* shm_native::small_payload(int peer) {
  if (peer == shm_.rank()) return call_->in;
  const contribution& theirs = shm_.slot(peer).contributions[turn()];
  std::size_t bytes = plan_.contributed;
  if (call_->kind == collective::allgather)
    bytes = block_of(call_->count, peer, shm_.size()).count * call_->element_size;
  return bytes <= contribution::inline_limit ? theirs.bytes : shown_by(peer);
}

void shm_native::complete_small() {
  const collective_call& c = *call_;
  const int n = shm_.size();
  const int me = shm_.rank();
  const std::size_t bytes = c.count * c.element_size;
  const auto move = [](std::byte* to, const std::byte* from, std::size_t size) {
    if (size > 0 && to != from) copy(to, from, size);
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
      const block own = block_of(c.count, me, n);
      return fold(own.first * c.element_size, own.count * c.element_size);
    }
    case collective::broadcast:
      return move(c.out, me == c.root ? c.in : small_payload(c.root), bytes);
    case collective::scatter:
      return move(c.out, small_payload(c.root) + static_cast<std::size_t>(me) * bytes, bytes);
    case collective::gather:
      if (me != c.root) return;
      for (int p = 0; p < n; ++p) move(c.out + static_cast<std::size_t>(p) * bytes, small_payload(p), bytes);
      return;
    case collective::allgather:
      for (int p = 0; p < n; ++p) {
        const block part = block_of(c.count, p, n);
        move(c.out + part.first * c.element_size, small_payload(p), part.count * c.element_size);
      }
      return;
    case collective::all_to_all:
      for (int p = 0; p < n; ++p)
        move(c.out + static_cast<std::size_t>(p) * bytes, small_payload(p) + static_cast<std::size_t>(me) * bytes,
             bytes);
      return;
    default:
      return;
  }
}

}}}  // namespace muster::v0::detail
