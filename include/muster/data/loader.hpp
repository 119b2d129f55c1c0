// The loader: the pipeline `source | shuffle(seed) | batch(global) | ...` that yields each rank's training samples,
// step by step.
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

namespace muster { inline namespace v0 { namespace data {

/// The requirements on a source of samples: it has a known number of samples and a digest that distinguishes it from
/// other sources. Copies are cheap.
template <class T>
concept sample_source = std::copyable<T> && requires(const T& source) {
  { source.size() } -> std::convertible_to<std::uint64_t>;
  { source.digest() } -> std::convertible_to<std::uint64_t>;
};

/// The requested order of an epoch.
struct shuffle_options {
  /// Order of the samples. If not set: `block_window` for a source that is read in blocks (block_records() is not 0)
  /// and for more than 4 GiB of records of a fixed size, else `shuffled`.
  std::optional<sample_order> order{};
  /// Number of samples in a block in block_window order. 0: the value of block_records(), or else as many samples as
  /// fill 4 MiB (4,096 if sizes differ).
  std::uint64_t block = 0;
  /// Number of blocks that are in memory and mixed at a time in block_window order. 0: 16.
  std::uint32_t window = 0;
};

/// The requested grouping of samples into batches.
struct batch_options {
  /// If true, the last batch of an epoch is left out when the batch is not full. The samples left out are in other
  /// batches of other epochs.
  bool drop_last = false;
  /// If true, the size is the size of a rank's part, and a step uses the size times the number of ranks. When ranks
  /// join and leave, each rank keeps its batch size, and the global batch size changes.
  bool per_rank = false;
};

/// The number of batches that are prepared ahead of next(), and the resources for this work.
struct prefetch_options {
  std::size_t batches = 0;
  /// Number of threads that prepare batches, besides the caller. The caller helps with the batch that it waits for, and
  /// prepares all batches itself when there are no other threads.
  int threads = 1;
  /// Memory for prepared batches, in bytes. Fewer batches are prepared when `batches` batches would need more memory.
  /// The batch in use is not counted.
  std::size_t bytes = std::size_t{256} << 20;
};

/// A step of a pipeline: orders the samples anew in every epoch.
struct shuffle {
  std::uint64_t seed;
  shuffle_options options;
  explicit constexpr shuffle(std::uint64_t value, shuffle_options requested = {}) noexcept
      : seed(value), options(requested) {}
};

/// A step of a pipeline: groups `size` samples, over all ranks, into one batch.
struct batch {
  std::uint64_t size;
  batch_options options;
  explicit constexpr batch(std::uint64_t value, batch_options requested = {}) noexcept
      : size(value), options(requested) {}
};

/// A step of a pipeline: threads prepare up to `batches` batches ahead. Its position in the pipeline does not matter.
struct prefetch {
  prefetch_options options;
  explicit constexpr prefetch(std::size_t batches) noexcept : options{.batches = batches} {}
  explicit constexpr prefetch(const prefetch_options& requested) noexcept : options(requested) {}
};

/// A step of a pipeline: sets the policy for bad records. Without this step the first bad record ends the run.
struct on_bad_records {
  bad_record_options options;
  explicit on_bad_records(bad_record_options requested) : options(std::move(requested)) {}
};

namespace detail {

class record_step;

/// The properties of a source that a loader uses, independent of the type of the source.
struct loader_source {
  // The order of the requirements matters: the test for being a source must not depend on its own result.
  template <class Source>
  requires(!std::same_as<Source, loader_source> && sample_source<Source>) explicit loader_source(Source source)
      : size(source.size()),
        digest(source.digest()),
        ids_alone(!record_source<Source> || std::same_as<Source, dataset>) {
    if constexpr (record_source<Source>) records.emplace(std::move(source));
  }

  std::uint64_t size;
  std::uint64_t digest;
  /// True if the contents of the samples are in memory or unknown. Records are then read only if a step requires the
  /// records.
  bool ids_alone;
  std::optional<any_record_source> records;
};

}  // namespace detail

/// A source with an order. A batch step must follow.
struct shuffled_source {
  detail::loader_source source;
  shuffle step;
};

/// Divides the samples of any source into global batches, epoch after epoch:
///
///     muster::loader loader = cifar10(dir) | shuffle(seed) | batch(256) | augment(crop_flip) | prefetch(4);
///     for (; loader.epoch() < epochs; loader.next_epoch()) {
///       while (auto batch = loader.next({rank, world})) {   // also with batch.samples empty: take part in the step
///         ...                                               // batch.values<float>(), batch.labels
///         loader.commit();                                  // without it, next() gives the same batch again
///       }
///     }
///
/// The order is a function of (seed, epoch), and the only state is a cursor. All ranks have the same cursor at every
/// step, and each rank names its shard at every step, so a change of world needs no new loader. The cursor moves when a
/// step commits and never earlier. Batches that were prepared for another shard are dropped. Every sample is used
/// exactly once an epoch, for every world and every change of the world. The last batch of an epoch is smaller if the
/// batch size does not divide the number of samples. The contents of a record after map() and augment() do not depend
/// on threads, ranks or shards.
///
/// For a `dataset`, which has its samples in memory, and for a source without records the loader yields ids alone,
/// until another step requires the records.
///
/// The loader owns the memory of its batches. It allocates nothing in the steady state, except when records of
/// different sizes outgrow the present buffers. A loader can be moved but not copied. It is used by one thread at a
/// time. Its threads sleep while there is no work.
class loader {
 public:
  /// Uses `order` if given, else the source's own order. Usually written `source | shuffle(seed) | batch(global)`.
  /// Throws configuration_error for a batch size of 0.
  loader(detail::loader_source source, const std::optional<shuffle>& order, const data::batch& batches);
  loader(loader&&) noexcept;
  loader& operator=(loader&&) noexcept;
  ~loader();

  /// Moves the loader to `start`. Throws configuration_error, and does not move, if `start` is a
  /// cursor of another dataset, order, seed, batch size or version, or is not at a boundary between two batches. The
  /// error names the difference. O(1).
  void open(const data::cursor& start);

  /// Returns the part of the batch at the cursor that belongs to `shard`, or false at the end of the epoch. Does not
  /// move the cursor: after a failed step the caller calls next() again, perhaps with another shard. Waits until the
  /// part is ready, recorded as the event data_wait. O(size) at the first call of a `shuffled` epoch. Throws
  /// configuration_error unless 0 <= rank < world. Rethrows exceptions of the source, map() and augment() with the
  /// record named. Throws data_error for a bad record that the policy does not allow. After an exception next() may be
  /// called again and retries. The error for exceeding the limit of bad records persists.
  [[nodiscard]] minibatch next(batch_shard shard);

  /// Moves the cursor past the current batch, after the step has used the batch. Throws configuration_error at the end
  /// of an epoch.
  void commit();

  /// Returns the owner of the memory of the batch that next() returned last: the batch's views stay valid as long as
  /// the owner, which may outlive the loader. When the owner is destroyed, by any thread, the loader uses the memory
  /// again. A program that keeps batches calls it after commit(). Returns null if the loader yields ids alone or has no
  /// current batch.
  [[nodiscard]] std::shared_ptr<const void> release_batch();

  /// Moves to the start of the next epoch, also before the end of the current epoch. Throws, and does not move, if a
  /// version that grow_to() named cannot be opened.
  void next_epoch();
  /// Moves to the start of the next epoch with a source that has grown. The current epoch keeps the samples with which
  /// it began, and the next epoch has all samples. Batches of the next epoch that were already prepared are dropped.
  /// Throws configuration_error, and does not move, if `grown` has no records although steps require records, or if a
  /// step refuses the records.
  template <sample_source Source>
  void next_epoch(Source grown) {
    replace(detail::loader_source(std::move(grown)));
  }

  /// Returns true if the source is followed (`records:FOLDER?follow`): other processes may add records while the loader
  /// runs.
  [[nodiscard]] bool follows() const noexcept;
  /// Returns the current number of records in the newest version of a followed source, and 0 for other sources. Before
  /// the commit of a batch for which may_grow() returns true, the ranks agree on a number and call grow_to(). A
  /// training does this. open() accepts cursors of every version.
  [[nodiscard]] std::uint64_t newest() const;
  /// Selects the version with `records` records, from the next epoch on. For a source opened with `every=N` the version
  /// applies from the commit of a batch for which may_grow() returns true: the new records join the epoch and are used
  /// next. This call opens no files.
  void grow_to(std::uint64_t records) noexcept;
  /// Returns true if the batch at the cursor, for the number of ranks in the last call of next(), is the last batch of
  /// its epoch or, for a source opened with `every=N`, the last of N batches.
  [[nodiscard]] bool may_grow() const noexcept;
  /// Returns the shards that this rank has, for a source in shards (`shards:FOLDER`). Names no shards for other
  /// sources.
  [[nodiscard]] held_shards available_shards() const;
  /// Assigns each sample, from the next batch on, to a rank that holds the sample's shard, and among these
  /// ranks to the rank with the lowest load for its weight. `shards_of_ranks` has every rank's available_shards() in
  /// rank order, the same list at every rank. The ranks agree on a new list when ranks join or leave, and when the
  /// source has grown. The choice of samples for a batch does not depend on the list. A training calls this function.
  /// Batches that were already prepared are dropped. Without assign_samples_to(), next() returns equal parts and throws
  /// if a shard is missing at this rank. With assign_samples_to(), next() throws data_error if no rank has a shard.
  /// Throws configuration_error for a list that does not match the source's shards.
  void assign_samples_to(std::vector<held_shards> shards_of_ranks);

  /// Returns the position of the loader. A cursor can be saved, sent, and opened elsewhere with open().
  [[nodiscard]] const data::cursor& cursor() const noexcept;
  /// Returns the same position as a handle for a `state`, which can move the loader.
  [[nodiscard]] sampler_handle cursor() noexcept;
  /// Returns the current epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return cursor().epoch; }
  /// Returns the number of committed steps of the current epoch.
  [[nodiscard]] std::uint64_t step() const noexcept;
  /// Returns the number of batches in an epoch. The last batch may be smaller.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept;
  /// Returns the schema of the records after all steps. It is empty for a source without records.
  [[nodiscard]] const record_schema& schema() const noexcept;
  /// Returns the source of the records. Throws configuration_error for a source without records.
  [[nodiscard]] const any_record_source& source() const;
  /// Returns the specification from which the source was opened. It is empty for a source without records.
  [[nodiscard]] std::string_view name() const noexcept;
  /// Returns the log of bad records that were left out of the batches so far.
  [[nodiscard]] const bad_record_log& bad_records() const noexcept;
  /// Returns the counters of the cache, all zero without a cache.
  [[nodiscard]] cache_statistics cache() const;

  /// Returns the loader with one more step, at the same cursor. map() and augment() use this function. See
  /// detail::record_step. Throws configuration_error for a step that cannot follow the steps before it, and for a
  /// source without records.
  [[nodiscard]] loader with(std::unique_ptr<detail::record_step> pipeline_step) &&;

  friend loader operator|(loader pipeline, data::cache step);
  friend loader operator|(loader pipeline, prefetch step);
  friend loader operator|(loader pipeline, on_bad_records step);

 private:
  struct engine;
  void replace(detail::loader_source source);

  std::unique_ptr<engine> engine_;
};

/// Orders the samples. The source is kept by value.
template <sample_source Source>
[[nodiscard]] shuffled_source operator|(Source source, shuffle pipeline_step) {
  return {detail::loader_source(std::move(source)), pipeline_step};
}

/// Groups samples into batches in the source's own order. Throws configuration_error for a batch size of 0.
template <sample_source Source>
[[nodiscard]] loader operator|(Source source, batch pipeline_step) {
  return {detail::loader_source(std::move(source)), std::nullopt, pipeline_step};
}

/// Groups samples into batches in shuffled order. Throws configuration_error for a batch size of 0.
[[nodiscard]] inline loader operator|(shuffled_source source, batch pipeline_step) {
  return {std::move(source.source), source.step, pipeline_step};
}

/// Returns the loader with one more step. Throws configuration_error if the step is not possible at this position in
/// the pipeline.
[[nodiscard]] loader operator|(loader pipeline, cache pipeline_step);
[[nodiscard]] loader operator|(loader pipeline, prefetch pipeline_step);
[[nodiscard]] loader operator|(loader pipeline, on_bad_records pipeline_step);

}}}  // namespace muster::v0::data

namespace muster { inline namespace v0 {

using data::batch;
using data::batch_options;
using data::loader;
using data::on_bad_records;
using data::prefetch;
using data::prefetch_options;
using data::sample_source;
using data::shuffle;
using data::shuffle_options;
using data::shuffled_source;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
