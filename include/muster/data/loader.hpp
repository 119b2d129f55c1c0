// dataset | shuffle(seed) | batch(global): which samples each rank trains on, step by step.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>
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
  loader(Source source, std::optional<std::uint64_t> seed, std::uint64_t global_batch) : source_(std::move(source)) {
    if (global_batch == 0) {
      throw configuration_error("the global batch cannot be 0 (a step needs samples); use at least 1");
    }
    at_.order = seed ? sample_order::shuffled : sample_order::sequential;
    at_.dataset = source_.digest();
    at_.size = source_.size();
    at_.seed = seed.value_or(0);
    at_.batch = global_batch;
    ids_.resize(std::min(at_.batch, at_.size));
  }

  /// Goes to where `there` says. Throws configuration_error, and stays, if that is a cursor of another dataset, order,
  /// seed, batch or version, naming what differs, or no place between two batches.
  void open(const muster::cursor& there) {
    if (const std::string difference = detail::difference(there, at_); !difference.empty()) {
      throw configuration_error("cannot go on from this cursor (" + difference +
                                "); open it with the data and settings it was made with");
    }
    if (there.position > there.size || (there.position % there.batch != 0 && there.position != there.size)) {
      throw configuration_error("cannot go on from this cursor (position " + std::to_string(there.position) +
                                " is not between two batches of " + std::to_string(there.batch) + " of " +
                                std::to_string(there.size) + " samples); it was damaged or made by hand");
    }
    at_ = there;
  }

  /// The part of the batch at the cursor that `part` gets; false at the end of the epoch. Does not move the cursor: a
  /// step that failed asks again, perhaps with another slice. O(samples of the slice), and O(size) at the first call of
  /// an epoch. Throws configuration_error unless 0 <= rank < world.
  [[nodiscard]] minibatch next(slice part) {
    const std::uint64_t count = batch_at_cursor();
    const index_range mine = part_of(count, part);
    const scoped_event event(activity::data_wait, "next", mine.size() * sizeof(sample_id));
    const std::uint64_t first = at_.position + mine.first;
    if (count != 0 && at_.order == sample_order::shuffled) {
      if (shuffled_epoch_ != at_.epoch) {
        order_.assign(at_.seed, at_.epoch, at_.size);
        shuffled_epoch_ = at_.epoch;
      }
      for (std::uint64_t i = 0; i < mine.size(); ++i) ids_[i] = order_[first + i];
    } else {
      for (std::uint64_t i = 0; i < mine.size(); ++i) ids_[i] = first + i;
    }
    return {{ids_.data(), mine.size()}, count, at_.epoch, at_.position};
  }

  /// Moves the cursor past its batch: the step has used it. Throws configuration_error at the end of an epoch.
  void commit() {
    if (at_.position == at_.size) {
      throw configuration_error("there is no batch to commit (epoch " + std::to_string(at_.epoch) +
                                " is over); call next_epoch()");
    }
    at_.position += batch_at_cursor();
  }

  /// Goes to the start of the next epoch, also when this one is not over.
  void next_epoch() noexcept {
    ++at_.epoch;
    at_.position = 0;
  }

  /// Where it is: save it, send it, open() it elsewhere.
  [[nodiscard]] const muster::cursor& cursor() const noexcept { return at_; }
  /// The current epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return at_.epoch; }
  /// Committed steps of the current epoch.
  [[nodiscard]] std::uint64_t step() const noexcept { return steps(at_.position); }
  /// Batches of an epoch, the last one perhaps smaller.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept { return steps(at_.size); }
  /// Samples of a global batch, but for the last one of an epoch.
  [[nodiscard]] std::uint64_t batch_size() const noexcept { return at_.batch; }
  /// What it deals out.
  [[nodiscard]] const Source& source() const noexcept { return source_; }

 private:
  [[nodiscard]] std::uint64_t batch_at_cursor() const noexcept { return std::min(at_.batch, at_.size - at_.position); }
  [[nodiscard]] std::uint64_t steps(std::uint64_t samples) const noexcept {
    return samples / at_.batch + (samples % at_.batch != 0 ? 1 : 0);
  }

  Source source_;
  muster::cursor at_;
  permutation order_;
  std::optional<std::uint64_t> shuffled_epoch_;  // the epoch that order_ is of
  std::vector<sample_id> ids_;
};

/// A step of a pipeline: a new order of the samples in every epoch.
struct shuffle {
  std::uint64_t seed;
  explicit constexpr shuffle(std::uint64_t value) noexcept : seed(value) {}
};

/// A step of a pipeline: `size` samples at a time, over all ranks.
struct batch {
  std::uint64_t size;
  explicit constexpr batch(std::uint64_t value) noexcept : size(value) {}
};

/// A source with an order, to be followed by a batch.
template <sample_source Source>
struct shuffled_source {
  Source source;
  std::uint64_t seed;
};

template <sample_source Source>
[[nodiscard]] shuffled_source<Source> operator|(Source source, shuffle step) {
  return {std::move(source), step.seed};
}

template <sample_source Source>
[[nodiscard]] loader<Source> operator|(Source source, batch step) {
  return {std::move(source), std::nullopt, step.size};
}

template <sample_source Source>
[[nodiscard]] loader<Source> operator|(shuffled_source<Source> from, batch step) {
  return {std::move(from.source), from.seed, step.size};
}

}  // namespace muster::inline v0
