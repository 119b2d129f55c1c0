// The direct and staged modes of the native collectives, for more data than a contribution holds.
#pragma once

#include <muster/comm/transports/shm/native.hpp>

#include <algorithm>
#include <cstring>

#include <muster/core/copy.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/round_up.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline constexpr std::size_t page = 4096;
inline constexpr std::size_t broadcast_pieces = 8;
inline constexpr std::size_t largest_broadcast_chunk = std::size_t{256} << 10;
inline constexpr std::size_t smallest_broadcast_chunk = 8192;
// written between two checks whether a rank has revoked its memory
inline constexpr std::size_t bytes_per_guard = std::size_t{64} << 10;

// ---- parts of the steps ----

MUSTER_INLINE bool shm_native::all_reached(std::atomic<std::uint64_t> slot_head::*counter, std::uint64_t number) {
  const std::uint64_t target = step(number);
  for (; next_peer_ < shm_.size(); ++next_peer_) {
    if (next_peer_ == shm_.rank()) continue;
    if ((shm_.slot(next_peer_).*counter).load(std::memory_order_acquire) < target) return false;
  }
  next_peer_ = 0;
  return true;
}

MUSTER_INLINE void shm_native::publish_step(std::atomic<std::uint64_t>& counter, std::uint64_t number) noexcept {
  counter.store(step(number), std::memory_order_release);
  shm_.wake_all();
}

MUSTER_INLINE bool shm_native::rank_needs_block(int rank, int block) const noexcept {
  switch (call_->kind) {
    case collective::reduce:
      return rank == call_->root;
    case collective::reduce_scatter:
      return rank == block;
    default:
      return true;
  }
}

// Returns true if another rank needs the block that this rank folds.
MUSTER_INLINE bool shm_native::peers_need_block() const noexcept {
  const collective kind = call_->kind;
  return kind == collective::reduce ? shm_.rank() != call_->root : kind != collective::reduce_scatter;
}

// Returns true if every buffer that peers access is registered.
MUSTER_INLINE bool shm_native::is_direct() {
  const auto flags = [&](int rank) { return shm_.slot(rank).contributions[contribution_index()].flags; };
  for (int p = 0; p < shm_.size(); ++p) {
    const bool in_matters = call_->kind != collective::allgather;
    const bool out_matters = call_->kind != collective::reduce_scatter && rank_needs_block(p, p);
    if (in_matters && (flags(p) & contribution::registered_in) == 0) return false;
    if (out_matters && (flags(p) & contribution::registered_out) == 0) return false;
  }
  return true;
}

MUSTER_INLINE bool shm_native::all_inputs_in_slots() const noexcept {
  for (int p = 0; p < shm_.size(); ++p) {
    if ((shm_.slot(p).contributions[contribution_index()].flags & contribution::input_in_slot) == 0) return false;
  }
  return true;
}

MUSTER_INLINE std::byte* shm_native::staging_slot(int staging_rank, std::uint64_t round, int block) noexcept {
  // Rounds rotate through the whole area: peers have just read the places of the previous collective, and a write to
  // those lines costs the most.
  const std::uint64_t global = global_round(round);
  // The chunk for each peer has a fixed index, counted from this rank: the rank that reads a place is the next to write
  // there. The place of the folded chunk, which all ranks read, passes to another rank each time the area is reused.
  const int rank_count = shm_.size();
  const int chunk_index = block == rank_count ? block : (block - staging_rank + rank_count) % rank_count;
  const std::size_t place = global % depth_ * (size() + 1) + static_cast<std::size_t>(chunk_index);
  return shm_.staging(shm_.rotated_slot(staging_rank, global / depth_, chunk_index == rank_count ? 1 : chunk_index)) +
         place * chunk_;
}

MUSTER_INLINE std::byte* shm_native::folded_chunk(int staging_rank, std::uint64_t round) noexcept {
  return staging_slot(staging_rank, round, shm_.size());
}

MUSTER_INLINE std::span<std::byte> shm_native::chunk_of(const std::byte* data, int block,
                                                        std::uint64_t round) const noexcept {
  const auto block_bytes = blocks_of(data).at(block);
  const std::size_t begin = std::min<std::size_t>(round * chunk_, block_bytes.size());
  return block_bytes.subspan(begin, std::min(chunk_, block_bytes.size() - begin));
}

// A guard that sets `slot_head::writing` for its lifetime: this rank is about to write into the memory of peers. The
// guard converts to false if a peer has revoked its memory, which may then be in use for something else.
class shm_native::peer_write_guard {
 public:
  explicit peer_write_guard(shm_native& writer) noexcept : writing_(writer.shm_.mine().writing) {
    writing_.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    allowed_ = !writer.any_peer_revoked();
  }
  peer_write_guard(const peer_write_guard&) = delete;
  peer_write_guard& operator=(const peer_write_guard&) = delete;
  ~peer_write_guard() { writing_.store(0, std::memory_order_release); }
  explicit operator bool() const noexcept { return allowed_; }

 private:
  std::atomic<std::uint32_t>& writing_;
  bool allowed_;
};

MUSTER_INLINE bool shm_native::any_peer_revoked() noexcept {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p != shm_.rank() && shm_.slot(p).revoked.load(std::memory_order_seq_cst) != 0) return true;
  }
  return false;
}

// ---- allreduce, reduce, reduce_scatter, allgather ----

MUSTER_INLINE task shm_native::run_reduce_family(scheduler_type& scheduler, shm_native& self) {
  co_await scheduler.until([&self] { return self.slot_is_free(); });
  self.publish_buffers();
  co_await scheduler.until([&self] { return self.all_contributed(); });
  self.next_peer_ = 0;
  if (self.all_inputs_in_slots()) {
    self.complete_small();
  } else if (self.is_direct()) {
    co_await run_direct(scheduler, self);
  } else {
    co_await run_staged(scheduler, self);
  }
  self.publish_finished();
}

// ---- direct ----

// Returns true if any rank may fold any block. In a reduce_scatter or allgather only the owner may: its output or input
// may be private.
MUSTER_INLINE bool shm_native::folds_peers_blocks() const noexcept {
  return shm_.host().oversubscribed() && (call_->kind == collective::allreduce || call_->kind == collective::reduce);
}

// Claims the block for this rank. Returns true if no rank had claimed the block. If the block's owner is in a later
// collective, the block has been folded.
MUSTER_INLINE bool shm_native::claim(int block) noexcept {
  auto& claimed = shm_.slot(block).claimed;
  std::uint64_t current = claimed.load(std::memory_order_relaxed);
  return current < step(1) && claimed.compare_exchange_strong(current, step(1), std::memory_order_relaxed);
}

// Folds `bytes` bytes of the block, from byte `begin` of the block on, and writes the result to every rank that needs
// the block. Returns false if a peer has revoked its memory.
MUSTER_INLINE bool shm_native::try_fold_part(int block, std::size_t begin, std::size_t bytes) {
  const peer_write_guard guard(*this);
  if (!guard) return false;
  const collective_call& c = *call_;
  const std::size_t offset = blocks_of(nullptr).elements(block).first * c.element_size;
  std::size_t outs = 0;
  for (int p = 0; p < shm_.size(); ++p) {
    const auto& place = shm_.slot(p).contributions[contribution_index()].offsets;
    const int host_rank = shm_.host_rank(p);
    const auto at = [&](std::uint64_t base) { return shm_.host().at(host_rank, base) + offset + begin; };
    if (c.kind != collective::allgather) peers_in_[static_cast<std::size_t>(p)] = at(place.in);
    if (rank_needs_block(p, block))
      peers_out_[outs++] = c.kind == collective::reduce_scatter ? c.out + begin : at(place.out);
  }
  const std::span<std::byte* const> outputs(peers_out_.data(), outs);
  if (c.kind != collective::allgather) {
    c.reduce.fold(outputs, peers_in_, bytes);
    return true;
  }
  for (std::byte* const out : outputs) {
    if (out != c.in + begin) copy_bytes(out, c.in + begin, bytes);
  }
  return true;
}

MUSTER_INLINE bool shm_native::try_fold_block(int block) {
  const std::size_t size = blocks_of(nullptr).at(block).size();
  for (std::size_t begin = 0; begin < size; begin += bytes_per_guard) {
    if (!try_fold_part(block, begin, std::min(bytes_per_guard, size - begin))) return false;
  }
  return true;
}

MUSTER_INLINE task shm_native::run_direct(scheduler_type& scheduler, shm_native& self) {
  const int blocks = self.folds_peers_blocks() ? self.shm_.size() : 1;
  for (int k = 0; k < blocks; ++k) {
    const int block = (self.shm_.rank() + k) % self.shm_.size();
    if (!self.claim(block)) continue;
    // the control message about the failure is under way
    if (!self.try_fold_block(block)) co_await scheduler.until([] { return false; });
    self.publish_step(self.shm_.slot(block).folded, 1);
  }
  co_await scheduler.until([&self] {
    return self.shm_.mine().folded.load(std::memory_order_acquire) >= self.step(1) &&
           self.all_reached(&slot_head::folded, 1);
  });
}

// ---- through the staging areas ----

// Divides `bytes` bytes into rounds, with one or more chunks a round in each rank's area.
MUSTER_INLINE void shm_native::divide(std::size_t bytes, std::size_t chunk, std::size_t chunks_per_round) {
  chunk_ = chunk;
  rounds_ = (bytes + chunk - 1) / chunk;
  depth_ = staging_bytes(size()) / (chunk * chunks_per_round);
}

// Copies this rank's chunks for the peers into their places (`staging_slot`).
MUSTER_INLINE void shm_native::stage_round(std::uint64_t round) {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank()) continue;
    const auto part = chunk_of(call_->in, p, round);
    if (!part.empty()) copy_bytes(staging_slot(shm_.rank(), round, p), part.data(), part.size());
  }
  publish_step(shm_.mine().staged, round + 1);
}

// Returns the place in this rank's output for the chunk that this rank folds; empty if this rank does not need the
// chunk.
MUSTER_INLINE std::span<std::byte> shm_native::own_result_chunk(std::uint64_t round) const noexcept {
  const int me = shm_.rank();
  if (!rank_needs_block(me, me)) return {};
  if (call_->kind != collective::reduce_scatter) return chunk_of(call_->out, me, round);
  const auto part = chunk_of(nullptr, me, round);
  return {call_->out + round * chunk_, part.size()};
}

// Folds the chunk of this rank's block over all inputs.
MUSTER_INLINE void shm_native::fold_round(std::uint64_t round) {
  const int me = shm_.rank();
  const auto mine = chunk_of(call_->in, me, round);
  const std::size_t bytes = mine.size();
  std::byte* out[2];
  std::size_t outs = 0;
  const auto own_chunk = own_result_chunk(round);
  if (!own_chunk.empty()) out[outs++] = own_chunk.data();
  if (peers_need_block()) out[outs++] = folded_chunk(me, round);
  if (bytes == 0 || outs == 0) return;
  if (call_->kind == collective::allgather) {
    const std::byte* const input = call_->in + round * chunk_;
    for (std::size_t k = 0; k < outs; ++k) {
      if (out[k] != input) copy_bytes(out[k], input, bytes);
    }
    return;
  }
  for (int p = 0; p < shm_.size(); ++p)
    peers_in_[static_cast<std::size_t>(p)] = p == me ? mine.data() : staging_slot(p, round, me);
  call_->reduce.fold({out, outs}, peers_in_, bytes);
}

// Copies the folded chunks of the peers to this rank's output.
MUSTER_INLINE void shm_native::copy_round(std::uint64_t round) {
  for (int p = 0; p < shm_.size(); ++p) {
    if (p == shm_.rank() || !rank_needs_block(shm_.rank(), p)) continue;
    const auto part = chunk_of(call_->out, p, round);
    if (!part.empty()) copy_bytes(part.data(), folded_chunk(p, round), part.size());
  }
}

MUSTER_INLINE task shm_native::run_staged(scheduler_type& scheduler, shm_native& self) {
  const bool stages_input = self.call_->kind != collective::allgather;
  // the folded chunks of peers
  const bool needs_peer_blocks = self.rank_needs_block(self.shm_.rank(), (self.shm_.rank() + 1) % self.shm_.size());
  const std::size_t largest_block = self.largest_block();
  self.divide(largest_block, std::min(round_up(largest_block, page), staging_chunk_bytes(self.size())),
              self.size() + 1);
  const std::uint64_t depth = self.depth_;

  co_await scheduler.until([&self] { return self.all_finished(self.staging_used_); });
  self.staging_used_ = self.sequence_;
  if (stages_input) self.stage_round(0);
  for (std::uint64_t round = 0; round < self.rounds_; ++round) {
    if (stages_input && round + 1 < self.rounds_) {
      // Waits until the chunks that were staged `depth` rounds before are folded.
      if (round + 1 >= depth)
        co_await scheduler.until(
            [&self, round, depth] { return self.all_reached(&slot_head::folded, round + 2 - depth); });
      self.stage_round(round + 1);
    }
    if (stages_input)
      co_await scheduler.until([&self, round] { return self.all_reached(&slot_head::staged, round + 1); });
    // The chunks that were folded `depth` rounds before have been copied: a rank copies them before it stages this
    // round, and in an allgather before it folds the previous round.
    self.fold_round(round);
    self.publish_step(self.shm_.mine().folded, round + 1);
    if (needs_peer_blocks)
      co_await scheduler.until([&self, round] { return self.all_reached(&slot_head::folded, round + 1); });
    self.copy_round(round);
  }
}

// ---- broadcast ----

MUSTER_INLINE task shm_native::broadcast(scheduler_type& scheduler, shm_native& self) {
  const collective_call& c = *self.call_;
  const int root = c.root;
  const std::size_t bytes = c.count * c.element_size;
  const bool at_root = self.shm_.rank() == root;
  if (at_root) {
    co_await scheduler.until([&self] { return self.slot_is_free(); });
    self.publish_buffers();
  } else {
    co_await scheduler.until([&self, root] { return self.contributed(root); });
  }
  const contribution& root_contribution = self.shm_.slot(root).contributions[self.contribution_index()];
  if ((root_contribution.flags & contribution::registered_in) == 0) {
    co_await broadcast_staged(scheduler, self);
    self.publish_finished();
    co_return;
  }
  if (at_root) {
    self.publish_finished();
    co_await scheduler.until([&self] { return self.all_finished(self.sequence_); });
    co_return;
  }
  copy_out(c.out, self.shm_.host().at(self.shm_.host_rank(root), root_contribution.offsets.in), bytes, bytes);
  if (self.shm_.slot(root).revoked.load(std::memory_order_seq_cst) != 0) co_await scheduler.until([] { return false; });
  self.publish_finished();
}

MUSTER_INLINE task shm_native::broadcast_staged(scheduler_type& scheduler, shm_native& self) {
  const collective_call& c = *self.call_;
  const int root = c.root;
  const std::size_t bytes = c.count * c.element_size;
  // The pieces are small enough that reads overlap with staging, and large enough that a piece costs more than its
  // synchronisation.
  const std::size_t piece_bytes = round_up(bytes / broadcast_pieces, page);
  self.divide(bytes, std::clamp(piece_bytes, smallest_broadcast_chunk, largest_broadcast_chunk), 1);
  const std::uint64_t depth = self.depth_;
  if (self.shm_.rank() == root) {
    co_await scheduler.until([&self] { return self.all_finished(self.staging_used_); });
    self.staging_used_ = self.sequence_;
  }
  for (std::uint64_t round = 0; round < self.rounds_; ++round) {
    const std::size_t begin = round * self.chunk_;
    const std::size_t n = std::min(self.chunk_, bytes - begin);
    // as in `staging_slot`
    std::byte* const chunk = self.shm_.staging(root) + self.global_round(round) % depth * self.chunk_;
    if (self.shm_.rank() == root) {
      if (round >= depth)
        co_await scheduler.until(
            [&self, round, depth] { return self.all_reached(&slot_head::consumed, round + 1 - depth); });
      self.shm_.host().put(chunk, c.in + begin, n, bytes);
      self.publish_step(self.shm_.mine().staged, round + 1);
    } else {
      co_await scheduler.until([&self, root, round] {
        return self.shm_.slot(root).staged.load(std::memory_order_acquire) >= self.step(round + 1);
      });
      copy_out(c.out + begin, chunk, n, bytes);
      self.publish_step(self.shm_.mine().consumed, round + 1);
    }
  }
}

}}}  // namespace muster::v0::detail
