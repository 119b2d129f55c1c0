// The buffers of batches, and the tasks that fill them. Private to the loader.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <muster/core/buffer.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/record_step.hpp>

#include <muster/data/parallel.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// A batch's part for one shard: its position, its contents, and its progress.
struct batch_slot {
  data::cursor position;
  batch_shard shard;

  std::vector<sample_id> ids;
  buffer<std::byte> bytes;
  std::size_t used = 0;                // number of used bytes
  std::vector<std::uint64_t> offsets;  // offsets of records, if their sizes differ
  buffer<float> labels;
  std::size_t label_width = 0;
  std::uint64_t left_out = 0;         // number of bad records that were removed
  bool bad_records_reported = false;  // true after the bad records have been reported and left out

  // The following members are guarded by the mutex of the ring.
  std::size_t piece_records = 1;  // number of records in a piece; the last piece may have fewer
  std::size_t pieces = 0;
  std::size_t started = 0;  // number of pieces that are running or have ended
  std::size_t running = 0;
  std::vector<bad_record> bad;
  std::exception_ptr failure;  // exception of the failed piece with the lowest number
  std::size_t failed_piece = 0;

  [[nodiscard]] bool is_complete() const noexcept { return started == pieces && running == 0; }
  /// Returns the offset of the k-th record in `bytes`. If k is the number of records, returns the end of the last
  /// record.
  [[nodiscard]] std::size_t begin_of(std::size_t k) const noexcept {
    return offsets.empty() ? k * (used / ids.size()) : offsets[k];
  }
};

/// A queue of slots in the order of their batches. The slots are filled in that order, piece by piece, by tasks and by
/// the waiting caller.
class batch_ring {
 public:
  /// Takes the last step of a chain, which computes the records. If `keeps_bad` is false, a bad record is an exception.
  batch_ring(const record_step& last, bool keeps_bad, int threads);
  ~batch_ring();

  /// Returns the number of slots that are complete or being filled. The first slot is in use.
  [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }
  [[nodiscard]] batch_slot& operator[](std::size_t i) noexcept { return *queue_[i]; }

  /// Returns a slot that is not in the queue, to be prepared and pushed.
  [[nodiscard]] std::unique_ptr<batch_slot> take();
  /// Allocates the buffers for a slot's ids and lets threads start to fill them.
  void push(std::unique_ptr<batch_slot> slot);
  /// Removes the first `count` slots. Waits for pieces that are being computed.
  void pop(std::size_t count) noexcept;
  /// Removes the first slot, which is complete, and returns its owner, which gives the slot back when it is destroyed.
  [[nodiscard]] std::shared_ptr<const void> release_first();
  /// Helps with the first slot until it is complete. Rethrows the exception of a failed piece.
  void finish_first();

 private:
  void allocate_buffers(batch_slot& slot);
  void work();
  /// Takes the slot's next piece and sets `piece` to its number. Returns false if no piece is left.
  bool begin_piece(batch_slot& slot, std::size_t& piece);
  /// Computes the records of the piece with that number, without the lock.
  void run_piece(std::unique_lock<std::mutex>& lock, batch_slot& slot, std::size_t piece, chain_scratch& scratch);

  const record_step& last_;
  bool keeps_bad_;
  std::size_t threads_;
  int rank_;  // for log messages
  std::mutex mutex_;
  std::condition_variable piece_ended_;  // signals the end of the last running piece of a slot
  // Written by the caller under mutex_. Read by tasks under mutex_.
  std::vector<std::unique_ptr<batch_slot>> queue_;
  std::vector<std::unique_ptr<batch_slot>> free_;  // used by the caller
  // Slots of released batches whose owners have been destroyed.
  struct returned_slots {
    std::mutex mutex;
    std::vector<std::unique_ptr<batch_slot>> slots;
  };
  std::shared_ptr<returned_slots> returned_ = std::make_shared<returned_slots>();
  chain_scratch scratch_;  // scratch of the caller
  // Scratch of tasks that are not running. Guarded by mutex_.
  std::vector<std::unique_ptr<chain_scratch>> scratch_of_tasks_;
  std::optional<background_tasks> tasks_;  // last member: the tasks use the other members
};

}}}}  // namespace muster::v0::data::detail
