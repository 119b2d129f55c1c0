// Batches of records in a ring of memory that is used again and again, made ahead by threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include <muster/data/bad_records.hpp>
#include <muster/data/epoch_plan.hpp>
#include <muster/data/live_cursor.hpp>
#include <muster/data/record_batch.hpp>
#include <muster/data/record_cache.hpp>
#include <muster/data/record_chain.hpp>
#include <muster/data/record_schema.hpp>
#include <muster/data/slice.hpp>

namespace muster::inline v0 {

/// How many batches are made before they are asked for.
struct prefetch_options {
  std::size_t batches = 0;
  /// Threads that make them, besides the caller: it helps with the batch that it waits for, and makes all of them when
  /// there are no others.
  int threads = 1;
  /// Memory for batches ahead: fewer are made where so many would take more. The one in use is not counted.
  std::size_t bytes = std::size_t{256} << 20;
};

namespace detail {

/// A record_chain behind one virtual call for each piece of a batch.
struct record_producer {
  virtual ~record_producer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  [[nodiscard]] virtual const record_schema& schema() const = 0;
  virtual void sizes(std::span<const sample_id> ids, std::span<std::uint64_t> out) const = 0;
  virtual void read(const chain_request& request, std::span<std::byte> bytes, chain_scratch& scratch) const = 0;
  [[nodiscard]] virtual cache_statistics cache() const = 0;
};

}  // namespace detail

/// Deals a source's records out in global batches, epoch after epoch: what `source | shuffle(seed) | batch(global) |
/// ...` makes, whatever the source and the steps are, for programs that choose them at run time.
///
///     muster::any_loader loader = cifar10(dir) | shuffle(seed) | batch(256) | augment(crop_flip) | prefetch(4);
///     for (; loader.epoch() < epochs; loader.next_epoch()) {
///       while (auto batch = loader.next({rank, world})) {   // also with batch.samples empty: take part in the step
///         ...                                               // batch.values<float>(), batch.labels
///         loader.commit();                                  // without it, next() gives the same batch again
///       }
///     }
///
/// Order, slices and cursor are those of `loader`: which records a step uses is a function of (seed, epoch, position),
/// the cursor moves when a step commits and never ahead of it, and each step names its slice; what was made ahead for
/// another slice is dropped. What is in a record after map() and augment() does not depend on threads, ranks or slices.
///
/// Owns the memory of its batches; allocates nothing in the steady state, except for records of unlike sizes that
/// outgrow what was there. Moved, not copied. Used by one thread at a time; its threads sleep while nothing is to do.
class any_loader {
 public:
  any_loader(any_loader&&) noexcept;
  any_loader& operator=(any_loader&&) noexcept;
  ~any_loader();

  /// Goes to where `there` says. Throws configuration_error, and stays, if that is a cursor of another dataset, order,
  /// seed, batch or version, naming what differs, or no place between two batches. O(1).
  void open(const muster::cursor& there);

  /// The part of the batch at the cursor that `part` gets; false at the end of the epoch. Does not move the cursor: a
  /// step that failed asks again, perhaps with another slice. Waits until the part is made, which is the event
  /// data_wait. Throws configuration_error unless 0 <= rank < world; what the source, map() and augment() throw, with
  /// the record named; data_error for a bad record that the policy does not allow. After an exception it may be called
  /// again, and tries again; but more bad records than the limit stay an error.
  [[nodiscard]] record_batch next(slice part);

  /// Moves the cursor past its batch: the step has used it. Throws configuration_error at the end of an epoch.
  void commit();

  /// Goes to the start of the next epoch, also when this one is not over.
  void next_epoch() noexcept;

  /// Where it is: save it, send it, open() it elsewhere.
  [[nodiscard]] const muster::cursor& cursor() const noexcept;
  /// The same for a `state`, which moves it. The loader must stay where it is for as long.
  [[nodiscard]] live_cursor cursor() noexcept { return live_cursor(*this); }
  /// The current epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return cursor().epoch; }
  /// Committed steps of the current epoch.
  [[nodiscard]] std::uint64_t step() const noexcept;
  /// Batches of an epoch, the last one perhaps smaller.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept;
  /// Samples of a global batch (or of a rank's, `per_rank`), but for the last one of an epoch.
  [[nodiscard]] std::uint64_t batch_size() const noexcept { return cursor().batch; }
  /// What records are behind all steps.
  [[nodiscard]] const record_schema& schema() const noexcept;
  /// What the source was opened from.
  [[nodiscard]] std::string_view name() const noexcept;
  /// The bad records that were left out of the batches given so far.
  [[nodiscard]] const bad_record_log& bad_records() const noexcept;
  /// What the cache did, all zero without one.
  [[nodiscard]] cache_statistics cache() const;

 protected:
  struct settings {
    prefetch_options prefetch;
    bad_record_options bad;
  };
  any_loader(std::unique_ptr<detail::record_producer> producer, const muster::cursor& start, settings chosen);
  [[nodiscard]] detail::record_producer& producer() noexcept;
  [[nodiscard]] const settings& chosen() const noexcept;
  /// Drops what was made ahead; the producer may be changed then.
  void drop() noexcept;
  void next_epoch(std::uint64_t size, std::uint64_t digest) noexcept;

 private:
  struct engine;
  std::unique_ptr<engine> engine_;
};

}  // namespace muster::inline v0
