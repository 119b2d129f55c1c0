// dataset | shuffle(seed) | batch(global): which samples each rank trains on, step by step.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <muster/core/events.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/epoch_plan.hpp>
#include <muster/data/live_cursor.hpp>
#include <muster/data/permutation.hpp>
#include <muster/data/slice.hpp>

namespace muster::inline v0 {

/// What a loader orders: something that holds a known number of samples and can be told from others. Cheap to copy.
template <class T>
concept sample_source = std::copyable<T> && requires(const T& source) {
  { source.size() } -> std::convertible_to<std::uint64_t>;
  { source.digest() } -> std::convertible_to<std::uint64_t>;
};
static_assert(sample_source<dataset>);

namespace detail {

/// The start of the epochs of a source, as its order and batches were asked for. Throws configuration_error for a batch
/// of 0. `record_bytes` is 0 where records differ in size, `cold` says that they are not in memory.
[[nodiscard]] cursor start_of(std::uint64_t digest, std::uint64_t size, std::optional<std::uint64_t> seed,
                              const shuffle_options& order, std::uint64_t global_batch, const batch_options& batches,
                              std::uint64_t record_bytes = 0, bool cold = false);

}  // namespace detail

/// One rank's part of a global batch. False when the epoch is over.
struct minibatch {
  /// Ids of this rank's samples, in order; possibly none although the others have some. Valid until the loader's next
  /// call to next().
  std::span<const sample_id> samples;
  std::uint64_t global_size = 0;  ///< samples of all ranks together: what a mean over the batch divides by
  std::uint64_t epoch = 0;        ///< from 0
  std::uint64_t position = 0;     ///< samples of the epoch before this batch

  [[nodiscard]] explicit operator bool() const noexcept { return global_size != 0; }
};

/// Deals a source's samples out in global batches, epoch after epoch:
///
///     auto loader = dataset | shuffle(seed) | batch(256);
///     for (; loader.epoch() < epochs; loader.next_epoch()) {
///       while (auto batch = loader.next({rank, world})) {   // also with batch.samples empty: take part in the step
///         ...                                               // dataset.row(id) for each id of batch.samples
///         loader.commit();                                  // without it, next() gives the same batch again
///       }
///     }
///
/// The order is a function of (seed, epoch), and the only state is a cursor: all ranks have the same one, step for
/// step, and each names its slice at every step, so that a change of world needs no new loader. Every sample is used
/// exactly once an epoch, whatever the world and however it changes; the last batch of an epoch is smaller when the
/// batch does not divide the samples. Nothing is allocated on the way. A value: a copy goes its own way. Used by one
/// thread at a time.
template <sample_source Source = dataset>
class loader {
 public:
  /// In shuffled order when there is a seed, else in the source's own; write `source | shuffle(seed) | batch(global)`.
  /// Throws configuration_error for a batch of 0.
  loader(Source source, std::optional<std::uint64_t> seed, std::uint64_t global_batch,
         const shuffle_options& order = {}, const batch_options& batches = {})
      : source_(std::move(source)),
        plan_(detail::start_of(source_.digest(), source_.size(), seed, order, global_batch, batches)) {
    ids_.resize(std::min(plan_.cursor().batch, plan_.cursor().size));
  }

  /// Goes to where `there` says. Throws configuration_error, and stays, if that is a cursor of another dataset, order,
  /// seed, batch or version, naming what differs, or no place between two batches.
  void open(const muster::cursor& there) { plan_.open(there); }

  /// The part of the batch at the cursor that `part` gets; false at the end of the epoch. Does not move the cursor: a
  /// step that failed asks again, perhaps with another slice. O(samples of the slice), and O(size) at the first call of
  /// an epoch. Throws configuration_error unless 0 <= rank < world.
  [[nodiscard]] minibatch next(slice part) {
    const muster::cursor& at = plan_.cursor();
    const std::uint64_t count = epoch_plan::batch_size(at, part.world);
    const index_range mine = part_of(count, part);
    const scoped_event event(activity::data_wait, "next", mine.size() * sizeof(sample_id));
    const std::span<sample_id> ids(ids_.data(), mine.size());
    plan_.ids(at, at.position + mine.first, ids);
    plan_.deal_to(part.world);
    return {ids, count, at.epoch, at.position};
  }

  /// Moves the cursor past its batch: the step has used it. Throws configuration_error at the end of an epoch.
  void commit() { plan_.commit(); }

  /// Goes to the start of the next epoch, also when this one is not over.
  void next_epoch() noexcept { plan_.next_epoch(); }

  /// The same with a source that has grown: an epoch keeps the samples it began with, and the next one has all.
  void next_epoch(Source grown) {
    source_ = std::move(grown);
    plan_.next_epoch(source_.size(), source_.digest());
    ids_.resize(std::min(plan_.cursor().batch, plan_.cursor().size));
  }

  /// Where it is: save it, send it, open() it elsewhere.
  [[nodiscard]] const muster::cursor& cursor() const noexcept { return plan_.cursor(); }
  /// The same for a `state`, which moves it.
  [[nodiscard]] live_cursor cursor() noexcept { return live_cursor(*this); }
  /// The current epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return cursor().epoch; }
  /// Committed steps of the current epoch.
  [[nodiscard]] std::uint64_t step() const noexcept { return plan_.step(); }
  /// Batches of an epoch, the last one perhaps smaller.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept { return plan_.steps_per_epoch(); }
  /// Samples of a global batch (or of a rank's, `per_rank`), but for the last one of an epoch.
  [[nodiscard]] std::uint64_t batch_size() const noexcept { return cursor().batch; }
  /// What it deals out.
  [[nodiscard]] const Source& source() const noexcept { return source_; }

 private:
  Source source_;
  epoch_plan plan_;
  std::vector<sample_id> ids_;
};

/// A step of a pipeline: a new order of the samples in every epoch.
struct shuffle {
  std::uint64_t seed;
  shuffle_options options;
  explicit constexpr shuffle(std::uint64_t value, shuffle_options asked = {}) noexcept : seed(value), options(asked) {}
};

/// A step of a pipeline: `size` samples at a time, over all ranks.
struct batch {
  std::uint64_t size;
  batch_options options;
  explicit constexpr batch(std::uint64_t value, batch_options asked = {}) noexcept : size(value), options(asked) {}
};

namespace detail {

/// Sources whose loader deals out ids alone: what is in the samples is in memory, or nobody knows.
template <class Source>
concept deals_ids = sample_source<Source> &&(!record_source<Source> || std::same_as<Source, dataset>);

}  // namespace detail

/// A source with an order, to be followed by a batch.
template <sample_source Source>
struct shuffled_source {
  Source source;
  shuffle step;
};

template <sample_source Source>
[[nodiscard]] shuffled_source<Source> operator|(Source source, shuffle step) {
  return {std::move(source), step};
}

template <detail::deals_ids Source>
[[nodiscard]] loader<Source> operator|(Source source, batch step) {
  return {std::move(source), std::nullopt, step.size, {}, step.options};
}

template <detail::deals_ids Source>
[[nodiscard]] loader<Source> operator|(shuffled_source<Source> from, batch step) {
  return {std::move(from.source), from.step.seed, step.size, from.step.options, step.options};
}

}  // namespace muster::inline v0
