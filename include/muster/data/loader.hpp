// source | shuffle(seed) | batch(global) | ...: what each rank trains on, step by step.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <muster/data/bad_records.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/data/cache.hpp>
#include <muster/data/cursor.hpp>
#include <muster/data/dataset.hpp>
#include <muster/data/minibatch.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/record_source.hpp>

namespace muster { inline namespace v0 {

/// What a loader orders: something that holds a known number of samples and can be told from others. Cheap to copy.
template <class T>
concept sample_source = std::copyable<T> && requires(const T& source) {
  { source.size() } -> std::convertible_to<std::uint64_t>;
  { source.digest() } -> std::convertible_to<std::uint64_t>;
};

/// How an epoch is ordered, as asked for.
struct shuffle_options {
  /// Nothing: `shuffled` for data in memory, `block_window` for data that is not.
  std::optional<sample_order> order{};
  /// Samples of a block in block_window order; 0: as many as make 4 MiB.
  std::uint64_t block = 0;
  /// Blocks that are in memory at a time, and mixed, in block_window order; 0: 16.
  std::uint32_t window = 0;
};

/// How samples become batches, as asked for.
struct batch_options {
  /// Leaves out the last batch of an epoch when it is not full. Those samples are in other batches of other epochs.
  bool drop_last = false;
  /// The size is that of each rank's part: a step takes so many times the number of ranks. Where ranks come
  /// and go each keeps its batch, and the global one changes.
  bool per_rank = false;
};

/// How many batches are made before they are asked for.
struct prefetch_options {
  std::size_t batches = 0;
  /// Threads that make them, besides the caller: it helps with the batch that it waits for, and makes all of them when
  /// there are no others.
  int threads = 1;
  /// Memory for batches ahead: fewer are made where so many would take more. The one in use is not counted.
  std::size_t bytes = std::size_t{256} << 20;
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

/// A step of a pipeline: up to `batches` batches are made ahead, by threads; it comes last.
struct prefetch {
  prefetch_options options;
  explicit constexpr prefetch(std::size_t batches) noexcept : options{.batches = batches} {}
  explicit constexpr prefetch(const prefetch_options& asked) noexcept : options(asked) {}
};

/// A step of a pipeline: what to do about bad records. Without it the first one ends the run.
struct on_bad_records {
  bad_record_options options;
  explicit on_bad_records(bad_record_options asked) : options(std::move(asked)) {}
};

namespace detail {

class record_step;

/// What a loader needs to know of a source, whatever it is.
struct loader_source {
  // In this order: whether it is itself a source must not depend on whether it is one.
  template <class Source>
  requires(!std::same_as<Source, loader_source> && sample_source<Source>) explicit loader_source(Source source)
      : size(source.size()),
        digest(source.digest()),
        ids_alone(!record_source<Source> || std::same_as<Source, dataset>) {
    if constexpr (record_source<Source>) records.emplace(std::move(source));
  }

  std::uint64_t size;
  std::uint64_t digest;
  bool ids_alone;  ///< what is in the samples is in memory, or not known, and not read unless a step wants it
  std::optional<any_record_source> records;
};

}  // namespace detail

/// A source with an order, to be followed by a batch.
struct shuffled_source {
  detail::loader_source source;
  shuffle step;
};

/// Deals a source's samples out in global batches, epoch after epoch, whatever the source and the steps are:
///
///     muster::loader loader = cifar10(dir) | shuffle(seed) | batch(256) | augment(crop_flip) | prefetch(4);
///     for (; loader.epoch() < epochs; loader.next_epoch()) {
///       while (auto batch = loader.next({rank, world})) {   // also with batch.samples empty: take part in the step
///         ...                                               // batch.values<float>(), batch.labels
///         loader.commit();                                  // without it, next() gives the same batch again
///       }
///     }
///
/// The order is a function of (seed, epoch), and the only state is a cursor: all ranks have the same one, step for
/// step, and each names its shard at every step, so that a change of world needs no new loader. The cursor moves when a
/// step commits and never ahead of it; what was made ahead for another shard is dropped. Every sample is used exactly
/// once an epoch, whatever the world and however it changes; the last batch of an epoch is smaller when the batch does
/// not divide the samples. What is in a record after map() and augment() does not depend on threads, ranks or shards.
///
/// From a `dataset`, which has its samples in memory, and from a source without records it gives ids alone, until one
/// more step wants the records.
///
/// Owns the memory of its batches; allocates nothing in the steady state, except for records of unlike sizes that
/// outgrow what was there. Moved, not copied. Used by one thread at a time; its threads sleep while nothing is to do.
class loader {
 public:
  /// In shuffled order when there is an order, else in the source's own; write `source | shuffle(seed) |
  /// batch(global)`. Throws configuration_error for a batch of 0.
  loader(detail::loader_source source, const std::optional<shuffle>& order, const muster::batch& batches);
  loader(loader&&) noexcept;
  loader& operator=(loader&&) noexcept;
  ~loader();

  /// Goes to where `there` says. Throws configuration_error, and stays, if that is a cursor of another dataset, order,
  /// seed, batch or version, naming what differs, or no place between two batches. O(1).
  void open(const muster::cursor& there);

  /// The part of the batch at the cursor that `part` gets; false at the end of the epoch. Does not move the cursor: a
  /// step that failed asks again, perhaps with another shard. Waits until the part is made, which is the event
  /// data_wait; O(size) at the first call of a `shuffled` epoch. Throws configuration_error unless 0 <= rank < world;
  /// what the source, map() and augment() throw, with the record named; data_error for a bad record that the policy
  /// does not allow. After an exception it may be called again, and tries again; but more bad records than the limit
  /// stay an error.
  [[nodiscard]] minibatch next(batch_shard part);

  /// Moves the cursor past its batch: the step has used it. Throws configuration_error at the end of an epoch.
  void commit();

  /// Goes to the start of the next epoch, also when this one is not over. Throws, and stays, where a version that
  /// grow_to() named cannot be opened.
  void next_epoch();
  /// The same with a source that has grown: an epoch keeps the samples it began with, and the next one has all. What
  /// was made ahead of it is dropped. Throws configuration_error, and stays, for one without records where steps want
  /// them, or with records that a step refuses.
  template <sample_source Source>
  void next_epoch(Source grown) {
    replace(detail::loader_source(std::move(grown)));
  }

  /// Whether its source is followed (`records:FOLDER?follow`): others may add to it meanwhile.
  [[nodiscard]] bool follows() const noexcept;
  /// Of a source that is followed: the records of its newest version, as it is now; 0 of others.
  /// Before the commit of a batch that says may_grow(), ranks agree on one of them and call grow_to(); a training does.
  /// open() takes cursors of every version.
  [[nodiscard]] std::uint64_t newest() const;
  /// The version of so many records, from the next epoch on; of a source opened with `every=N` from the commit of a
  /// batch on that says may_grow(): its new records join the epoch and are used next. Nothing is opened yet.
  void grow_to(std::uint64_t records) noexcept;
  /// Whether the batch at the cursor, of as many ranks as next() last dealt to, is the last one of its epoch, or, of a
  /// source opened with `every=N`, of N batches.
  [[nodiscard]] bool may_grow() const noexcept;
  /// Of a source in shards (`shards:FOLDER`): what this rank has of it. Names nothing for others.
  [[nodiscard]] held_shards held() const;
  /// From the next batch on, each sample of a batch goes to a rank that holds its shard, and of those to the one that
  /// has least for its weight. `ranks`: held() of each rank, in their order, the same list at every rank; agreed anew
  /// when ranks come or go, and when the source has grown. Which samples a batch has does not depend on it. A training
  /// does this. What was made ahead is dropped. Without it, next() gives equal parts, and throws where not all is here;
  /// with it, it throws data_error where no rank has a shard. Throws configuration_error for what is not of its shards.
  void deal_by(std::vector<held_shards> ranks);

  /// Where it is: save it, send it, open() it elsewhere.
  [[nodiscard]] const muster::cursor& cursor() const noexcept;
  /// The same for a `state`, which moves it.
  [[nodiscard]] live_cursor cursor() noexcept;
  /// The current epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return cursor().epoch; }
  /// Committed steps of the current epoch.
  [[nodiscard]] std::uint64_t step() const noexcept;
  /// Batches of an epoch, the last one perhaps smaller.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept;
  /// What records are behind all steps; of nothing for a source without records.
  [[nodiscard]] const record_schema& schema() const noexcept;
  /// What its records come from. Throws configuration_error for a source without records.
  [[nodiscard]] const any_record_source& source() const;
  /// What the source was opened from; empty for a source without records.
  [[nodiscard]] std::string_view name() const noexcept;
  /// The bad records that were left out of the batches given so far.
  [[nodiscard]] const bad_record_log& bad_records() const noexcept;
  /// What the cache did, all zero without one.
  [[nodiscard]] cache_statistics cache() const;

  /// The loader with one more step, at the same cursor: what map() and augment() do; see detail::record_step. Throws
  /// configuration_error for a step that cannot follow those before it, and for a source without records.
  [[nodiscard]] loader with(std::unique_ptr<detail::record_step> step) &&;

  friend loader operator|(loader from, muster::cache step);
  friend loader operator|(loader from, prefetch step);
  friend loader operator|(loader from, on_bad_records step);

 private:
  struct engine;
  void replace(detail::loader_source source);

  std::unique_ptr<engine> engine_;
};

/// Orders the samples; the source is kept by value.
template <sample_source Source>
[[nodiscard]] shuffled_source operator|(Source source, shuffle step) {
  return {detail::loader_source(std::move(source)), step};
}

/// Batches in the source's own order. Throws configuration_error for a batch of 0.
template <sample_source Source>
[[nodiscard]] loader operator|(Source source, batch step) {
  return {detail::loader_source(std::move(source)), std::nullopt, step};
}

/// Batches in shuffled order. Throws configuration_error for a batch of 0.
[[nodiscard]] inline loader operator|(shuffled_source from, batch step) {
  return {std::move(from.source), from.step, step};
}

/// The loader with one more step. Throws configuration_error where that step is not possible at this place.
[[nodiscard]] loader operator|(loader from, cache step);
[[nodiscard]] loader operator|(loader from, prefetch step);
[[nodiscard]] loader operator|(loader from, on_bad_records step);

}}  // namespace muster::v0
