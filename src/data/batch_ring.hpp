// The memory of batches, and the tasks that fill it; private to loader.
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

#include "parallel.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// One batch's part for one shard: where it is, what is in it, how far it is.
struct batch_slot {
  muster::cursor where;
  batch_shard part;

  std::vector<sample_id> ids;
  buffer<std::byte> bytes;
  std::size_t used = 0;                // bytes
  std::vector<std::uint64_t> offsets;  // of records that differ in size
  buffer<float> labels;
  std::size_t label_width = 0;
  std::uint64_t left_out = 0;
  bool settled = false;  // what is bad is left out, and told

  // Of the mutex of the ring.
  std::size_t piece = 1;  // records a piece
  std::size_t pieces = 0;
  std::size_t begun = 0;
  std::size_t running = 0;
  std::vector<bad_record> bad;
  std::exception_ptr failure;  // of the first piece that failed
  std::size_t failed_piece = 0;

  [[nodiscard]] bool is_complete() const noexcept { return begun == pieces && running == 0; }
  /// Where the k-th record begins in `bytes`; of their number, where the last one ends.
  [[nodiscard]] std::size_t begin_of(std::size_t k) const noexcept {
    return offsets.empty() ? k * (used / ids.size()) : offsets[k];
  }
};

/// Slots in the order of their batches, filled in that order, piece by piece, by tasks and by the waiting caller.
class batch_ring {
 public:
  /// Of the records that the last step of a chain makes.
  batch_ring(const record_step& last, bool keeps_bad, int threads);
  ~batch_ring();

  /// The slots that are made or being made; the first is the one in use.
  [[nodiscard]] std::size_t size() const noexcept { return queue_.size(); }
  [[nodiscard]] batch_slot& operator[](std::size_t i) noexcept { return *queue_[i]; }

  /// A slot that is not in the queue, to be prepared and pushed.
  [[nodiscard]] std::unique_ptr<batch_slot> take();
  /// Makes room in a slot for its ids and lets threads begin.
  void push(std::unique_ptr<batch_slot> slot);
  /// Takes the first `count` slots out; waits for pieces that are being made.
  void pop(std::size_t count) noexcept;
  /// Helps with the first slot until it is complete. Throws what making it threw.
  void finish_first();

 private:
  void make_room(batch_slot& slot);
  void work();
  bool begin_piece(batch_slot& slot, std::size_t& piece);
  void run_piece(std::unique_lock<std::mutex>& lock, batch_slot& slot, std::size_t piece, chain_scratch& scratch);

  const record_step& last_;
  bool keeps_bad_;
  std::size_t threads_;
  int rank_;  // in log messages
  std::mutex mutex_;
  std::condition_variable done_;  // a piece was made
  std::vector<std::unique_ptr<batch_slot>> queue_;
  std::vector<std::unique_ptr<batch_slot>> free_;
  chain_scratch scratch_;                                         // of the caller
  std::vector<std::unique_ptr<chain_scratch>> scratch_of_tasks_;  // of those that do not run
  std::optional<background_tasks> tasks_;                         // last: they use the others
};

}}}  // namespace muster::v0::detail
