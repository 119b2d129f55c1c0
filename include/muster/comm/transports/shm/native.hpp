// Native collectives over shared memory. The protocol of the shared fields is described in shm_group.hpp.
#pragma once

#include <optional>
#include <vector>

#include <muster/comm/block.hpp>
#include <muster/comm/task.hpp>

#include <muster/comm/transports/shm/cores.hpp>
#include <muster/comm/transports/shm/shm_group.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Smallest number of rounds that a staging area holds: peers read one round while the owner writes the next.
inline constexpr std::uint64_t staging_depth = 2;

/// Returns the largest chunk of the staging area in bytes, in a group of `rank_count` ranks. Each round holds one chunk
/// for every rank and one folded chunk. A chunk is a multiple of the page size. Among hundreds of ranks, where a page
/// does not fit, a chunk is a multiple of the cache line.
[[nodiscard]] constexpr std::size_t staging_chunk_bytes(std::size_t rank_count) noexcept {
  constexpr std::size_t page = 4096;
  constexpr std::size_t largest = std::size_t{256} << 10;
  const std::size_t room = staging_bytes(rank_count) / (staging_depth * (rank_count + 1));
  const std::size_t unit = room >= page ? page : cache_line;
  return room >= largest ? largest : room / unit * unit;
}

/// Runs native collectives, one at a time, in three modes:
/// - small: every rank publishes its input in its slot, and computes its own result from all inputs. If no rank's
///   buffer is registered, this mode also serves a reduce or allgather up to `published_limit`, and an allreduce
///   between two ranks up to half of `published_limit`.
/// - direct: all buffers are in shared memory. Rank r folds block r over all inputs and writes the result to the ranks
///   that need block r. This mode has no intermediate copy and two synchronisations. If oversubscribed, a rank
///   continues with blocks that no rank has claimed, so that it waits for no rank that has no core.
/// - staged: private buffers pass through the staging areas in rounds of chunks. In a round, each rank stages a chunk
///   for each peer, folds a chunk of its own block over all inputs, and copies the folded chunks of the peers. The
///   first round begins when all ranks have finished the previous staged collective.
///
/// All modes fold in the order of ranks, so the result has the same bits in each mode. No rank writes into the private
/// memory of a peer. A rank sets `slot_head::writing` while it writes into registered buffers of peers. A rank that
/// fails first revokes its memory and then waits until no peer writes there.
class shm_native {
 public:
  explicit shm_native(shm_group& shm) : shm_(shm), cores_(shm.size()), peers_in_(size()), peers_out_(size()) {}

  enum class start_result { unsupported, pending, complete };
  /// Starts a collective. Returns `unsupported` for a gather, scatter or all_to_all that is too large for the small
  /// mode: the library's algorithms over messages then perform the collective. `call` must live until the collective is
  /// complete.
  start_result start(const collective_call& call);
  /// Advances the collective. Returns true when the collective is complete.
  bool test(request& req);
  /// Returns true if a rank that has not contributed yet last ran on this rank's core: that rank can contribute only
  /// after this rank yields. Every other missing rank has its own core and contributes soon. In the direct and staged
  /// modes every rank that last ran on this core counts. Returns true if no collective is pending.
  [[nodiscard]] bool waits_for_this_core() const;
  /// Cancels the collective and ends this rank's native collectives in the group.
  void cancel() noexcept;

 private:
  using scheduler_type = coroutine_scheduler;

  [[nodiscard]] std::size_t size() const noexcept { return static_cast<std::size_t>(shm_.size()); }

  // Contributions.
  [[nodiscard]] std::size_t contribution_index() const noexcept { return sequence_ % slot_head::contribution_count; }
  [[nodiscard]] std::size_t bytes_in() const noexcept;
  [[nodiscard]] std::size_t bytes_out() const noexcept;
  [[nodiscard]] std::span<std::byte> own_block() const noexcept { return blocks_of(nullptr).at(shm_.rank()); }
  [[nodiscard]] bool slot_is_free();
  // On an oversubscribed host: writes this rank's core to its slot, and from time to time moves to a better core.
  void publish_core() noexcept;
  // Contributes the input itself, for the small mode.
  void publish_small(const std::byte* small, std::size_t bytes);
  // Contributes the offsets of the buffers, for the other modes; see `small_plan::copies_input`.
  void publish_buffers();
  // Returns true if the peer has contributed to the pending collective. Throws mismatch_error if the peer's call
  // differs.
  [[nodiscard]] bool contributed(int peer);
  // Returns true if all peers have contributed to the pending collective.
  [[nodiscard]] bool all_contributed();
  // Returns true if all ranks have finished the collective with this sequence number.
  [[nodiscard]] bool all_finished(std::uint64_t sequence);
  // Throws the mismatch_error that describes how the peer's call differs.
  [[noreturn]] void throw_mismatch(int peer);
  // Sets `slot_head::finished` to the pending collective, and wakes the peers.
  void publish_finished() noexcept;

  // The small mode.
  struct small_plan {
    std::size_t contributed = 0;  // bytes that this rank contributes
    bool contributes = true;
    bool awaits_all = true;  // otherwise this rank waits for the root only, or for no rank
    bool awaits_root = false;
    bool is_small = false;
    bool copies_input =
        false;  // `publish_buffers` also copies the input to the slot buffer, if the buffers are private
  };
  // Determines which ranks contribute to the pending call and wait, and whether the call is small.
  [[nodiscard]] small_plan plan_small() const;
  // Contributes if the slot is free, and completes the call when the awaited peers have contributed. Returns true when
  // the call is complete.
  [[nodiscard]] bool test_small();
  [[nodiscard]] std::byte* slot_buffer_of(int rank) noexcept;
  // Returns the peer's input: in its contribution, or in its slot buffer. For this rank, the input of the call.
  [[nodiscard]] const std::byte* small_payload(int peer);
  // Computes this rank's result from the inputs that the ranks have contributed.
  void complete_small();

  // The direct and staged modes.
  [[nodiscard]] std::uint64_t step(std::uint64_t number) const noexcept { return step_word(sequence_, number); }
  // Returns true if that counter of every peer has reached step `number` of the pending collective.
  [[nodiscard]] bool all_reached(std::atomic<std::uint64_t> slot_head::*counter, std::uint64_t number);
  // Sets the counter to step `number` of the pending collective, and wakes the peers.
  void publish_step(std::atomic<std::uint64_t>& counter, std::uint64_t number) noexcept;
  // Returns true if the rank's output contains the block.
  [[nodiscard]] bool rank_needs_block(int rank, int block) const noexcept;
  [[nodiscard]] bool peers_need_block() const noexcept;
  [[nodiscard]] bool is_direct();
  // Returns true if every rank has copied its input to its slot buffer: then the small mode completes the collective.
  [[nodiscard]] bool all_inputs_in_slots() const noexcept;
  // Returns the place into which `staging_rank` writes the chunk of `block` in a round. The place is in the staging
  // area of `rotated_slot`. Block size() is the folded chunk.
  [[nodiscard]] std::byte* staging_slot(int staging_rank, std::uint64_t round, int block) noexcept;
  [[nodiscard]] std::byte* folded_chunk(int staging_rank, std::uint64_t round) noexcept;
  class peer_write_guard;
  [[nodiscard]] bool folds_peers_blocks() const noexcept;
  [[nodiscard]] bool claim(int block) noexcept;
  // Folds the block between the buffers of all ranks, or copies the block in an allgather. Returns false if a peer has
  // revoked its memory.
  [[nodiscard]] bool try_fold_block(int block);
  // Does the same for `bytes` bytes of the block from offset `begin` on.
  [[nodiscard]] bool try_fold_part(int block, std::size_t begin, std::size_t bytes);
  [[nodiscard]] bool any_peer_revoked() noexcept;
  [[nodiscard]] blocks blocks_of(const std::byte* data) const noexcept {
    return {const_cast<std::byte*>(data), call_->count, call_->element_size, shm_.size(),
            call_->uneven == nullptr ? nullptr : call_->uneven->blocks()};
  }
  // Returns the bytes of the largest block of the pending call.
  [[nodiscard]] std::size_t largest_block() const noexcept {
    if (call_->uneven != nullptr) return call_->uneven->largest * call_->element_size;
    return blocks_of(nullptr).at(shm_.size() - 1).size();
  }
  // Returns the round's chunk of a block in the buffer `data`; empty after the end of the block.
  [[nodiscard]] std::span<std::byte> chunk_of(const std::byte* data, int block, std::uint64_t round) const noexcept;

  void divide(std::size_t bytes, std::size_t chunk, std::size_t chunks_per_round);
  [[nodiscard]] std::uint64_t global_round(std::uint64_t round) const noexcept { return round + sequence_ * rounds_; }
  void stage_round(std::uint64_t round);
  void fold_round(std::uint64_t round);
  [[nodiscard]] std::span<std::byte> own_result_chunk(std::uint64_t round) const noexcept;
  void copy_round(std::uint64_t round);

  static task run_reduce_family(scheduler_type& scheduler, shm_native& self);
  static task run_direct(scheduler_type& scheduler, shm_native& self);
  static task run_staged(scheduler_type& scheduler, shm_native& self);
  static task broadcast(scheduler_type& scheduler, shm_native& self);
  static task broadcast_staged(scheduler_type& scheduler, shm_native& self);

  shm_group& shm_;
  core_spreader cores_;
  // The pending collective, or null.
  const collective_call* call_ = nullptr;
  std::uint64_t sequence_ = 0;
  std::uint32_t signature_hash_ = 0;
  small_plan plan_;
  bool has_contributed_ = false;
  int next_peer_ = 0;  // ranks below it have contributed

  // Cached state of the peers, which saves loads from their slots.
  std::uint64_t all_finished_ = 0;  // number of a collective that all peers have finished
  std::uint64_t staging_used_ = 0;  // number of the last collective in which peers read this rank's staging area

  // Division of the pending collective into rounds in the staging areas.
  std::size_t chunk_ = 0;     // bytes of a block, or of the whole buffer, in a round
  std::uint64_t rounds_ = 0;  // number of rounds
  std::uint64_t depth_ = 0;   // number of rounds that the staging area holds at a time

  frame_pool pool_;
  std::optional<scheduler_type> steps_;
  task body_;
  std::vector<const std::byte*> peers_in_;
  std::vector<std::byte*> peers_out_;
};

}}}  // namespace muster::v0::detail
