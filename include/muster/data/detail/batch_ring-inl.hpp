#pragma once

#include <muster/data/batch_ring.hpp>

#include <algorithm>
#include <utility>

#include <muster/core/inline.hpp>
#include <muster/core/log.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {
// Size of a piece: large compared with the cost of distributing it, and small compared with a batch, so that threads
// finish at about the same time.
inline constexpr std::size_t slot_piece_bytes = std::size_t{128} << 10;
inline constexpr std::size_t most_piece_records = 1024;

MUSTER_INLINE batch_ring::batch_ring(const record_step& last, bool keeps_bad, int threads)
    : last_(last), keeps_bad_(keeps_bad), threads_(static_cast<std::size_t>(std::max(threads, 0))), rank_(log_rank()) {
  if (threads_ > 0) tasks_.emplace(threads_);
}

MUSTER_INLINE batch_ring::~batch_ring() {
  pop(queue_.size());  // otherwise the tasks would fill slots for which no caller waits
}

MUSTER_INLINE std::unique_ptr<batch_slot> batch_ring::take() {
  if (free_.empty()) {
    const std::lock_guard lock(returned_->mutex);
    free_.swap(returned_->slots);
  }
  if (free_.empty()) return std::make_unique<batch_slot>();
  auto slot = std::move(free_.back());
  free_.pop_back();
  return slot;
}

MUSTER_INLINE void batch_ring::allocate_buffers(batch_slot& slot) {
  const record_schema& schema = last_.schema();
  const std::size_t count = slot.ids.size();
  std::size_t record = schema.record_bytes();
  slot.offsets.clear();
  if (schema.form != record_form::fixed) {
    slot.offsets.resize(count + 1);
    last_.sizes(slot.ids, std::span(slot.offsets).subspan(1));
    for (std::size_t k = 0; k < count; ++k) slot.offsets[k + 1] += slot.offsets[k];
    slot.used = slot.offsets[count];
    record = count == 0 ? 1 : slot.used / count;
  } else {
    slot.used = count * record;
  }
  slot.label_width = schema.labels.size();
  if (slot.bytes.size() < slot.used) slot.bytes = buffer<std::byte>(slot.used);
  if (slot.labels.size() < count * slot.label_width) slot.labels = buffer<float>(count * slot.label_width);
  slot.left_out = 0;
  slot.bad_records_reported = false;
  slot.piece_records =
      std::clamp<std::size_t>(slot_piece_bytes / std::max<std::size_t>(record, 1), 1, most_piece_records);
  slot.pieces = (count + slot.piece_records - 1) / slot.piece_records;
  slot.started = 0;
  slot.running = 0;
  slot.bad.clear();
  slot.failure = nullptr;
}

MUSTER_INLINE void batch_ring::push(std::unique_ptr<batch_slot> slot) {
  allocate_buffers(*slot);
  const std::size_t useful = std::min(slot->pieces, threads_);
  {
    const std::lock_guard lock(mutex_);
    free_.reserve(free_.size() + queue_.size() + 1);  // so that pop() allocates no memory
    queue_.push_back(std::move(slot));
  }
  for (std::size_t i = 0; i < useful; ++i) tasks_->start([this] { work(); });
}

MUSTER_INLINE void batch_ring::pop(std::size_t count) noexcept {
  std::unique_lock lock(mutex_);
  for (std::size_t i = 0; i < count; ++i) queue_[i]->started = queue_[i]->pieces;
  piece_ended_.wait(lock, [&] {
    return std::all_of(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(count),
                       [](const auto& slot) { return slot->running == 0; });
  });
  const auto end = queue_.begin() + static_cast<std::ptrdiff_t>(count);
  free_.insert(free_.end(), std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
}

MUSTER_INLINE std::shared_ptr<const void> batch_ring::release_first() {
  std::unique_ptr<batch_slot> first;
  {
    const std::lock_guard lock(mutex_);
    first = std::move(queue_.front());
    queue_.erase(queue_.begin());
  }
  return {first.release(), [home = returned_](batch_slot* released) {
            std::unique_ptr<batch_slot> slot(released);
            const std::lock_guard lock(home->mutex);
            home->slots.push_back(std::move(slot));
          }};
}

MUSTER_INLINE bool batch_ring::begin_piece(batch_slot& slot, std::size_t& piece) {
  if (slot.started == slot.pieces) return false;
  piece = slot.started++;
  ++slot.running;
  return true;
}

MUSTER_INLINE void batch_ring::run_piece(std::unique_lock<std::mutex>& lock, batch_slot& slot, std::size_t piece,
                                         chain_scratch& scratch) {
  lock.unlock();
  const std::size_t first = piece * slot.piece_records;
  const std::size_t count = std::min(slot.piece_records, slot.ids.size() - first);
  std::vector<bad_record> bad;
  std::exception_ptr failure;
  try {
    const std::size_t begin = slot.begin_of(first);
    const chain_request request{
        .ids = std::span(slot.ids).subspan(first, count),
        .seed = slot.position.seed,
        .epoch = slot.position.epoch,
        .labels = slot.labels.span().subspan(first * slot.label_width, count * slot.label_width),
        .bad = keeps_bad_ ? &bad : nullptr,
        .output = slot.bytes.span().subspan(begin, slot.begin_of(first + count) - begin)};
    last_.read(request, scratch);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure && (!slot.failure || piece < slot.failed_piece)) {
    // Pieces are started in order. When a piece fails, all earlier pieces have been started, so the lowest failed piece
    // is the same for any number of threads.
    slot.failure = failure;
    slot.failed_piece = piece;
    slot.started = slot.pieces;
  }
  slot.bad.insert(slot.bad.end(), std::make_move_iterator(bad.begin()), std::make_move_iterator(bad.end()));
  if (--slot.running == 0 && slot.started == slot.pieces) piece_ended_.notify_all();
}

MUSTER_INLINE void batch_ring::work() {
  set_log_rank(rank_);
  std::unique_lock lock(mutex_);
  std::unique_ptr<chain_scratch> scratch;
  if (scratch_of_tasks_.empty()) {
    scratch = std::make_unique<chain_scratch>();
  } else {
    scratch = std::move(scratch_of_tasks_.back());
    scratch_of_tasks_.pop_back();
  }
  batch_slot* slot = nullptr;
  std::size_t piece = 0;
  const auto found = [&] {
    return std::any_of(queue_.begin(), queue_.end(), [&](const auto& candidate) {
      slot = candidate.get();
      return begin_piece(*slot, piece);
    });
  };
  while (found()) run_piece(lock, *slot, piece, *scratch);
  scratch_of_tasks_.push_back(std::move(scratch));
}

MUSTER_INLINE void batch_ring::finish_first() {
  std::unique_lock lock(mutex_);
  batch_slot& slot = *queue_.front();
  std::size_t piece = 0;
  while (begin_piece(slot, piece)) run_piece(lock, slot, piece, scratch_);
  piece_ended_.wait(lock, [&] { return slot.is_complete(); });
  if (slot.failure) std::rethrow_exception(slot.failure);
}

}}}}  // namespace muster::v0::data::detail
