// Which samples each step uses: a cursor, the rules by which it moves, and the order it moves through.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <muster/data/batch_shard.hpp>
#include <muster/data/cursor.hpp>
#include "block_window.hpp"
#include "feistel.hpp"
#include "permutation.hpp"
#include "proportions.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// P(seed, epoch, size) of each sample_order as one value: which sample is at which position of an epoch.
class sampler {
 public:
  /// The order of no samples.
  sampler() = default;

  /// Becomes the order of the epoch that `where` is in, which only its order, seed, epoch, size, block and window say.
  /// O(size) for a `shuffled` epoch, in the memory of the one before; O(1) for the others, and when it is of that epoch
  /// already. Throws configuration_error for a size that the order cannot have.
  void assign(const cursor& where);

  /// Whether assign(where) would change nothing.
  [[nodiscard]] bool is_of(const cursor& where) const noexcept;
  /// The samples at the positions [first, first + ids.size()), all of the epoch. O(ids.size()).
  void fill(std::uint64_t first, std::span<sample_id> ids) const noexcept;

 private:
  cursor of_;
  permutation exact_;
  feistel_permutation feistel_;
  block_window_permutation blocks_;
};

/// The steps of all epochs: what a loader does without touching the data. A value; used by one thread at a time.
class batch_sampler {
 public:
  /// The epochs that `start` is in; its batch is not 0.
  explicit batch_sampler(const muster::cursor& start) noexcept : at_(start) {}

  /// Goes to where `there` says. Throws configuration_error, and stays, if that is a cursor of another dataset, order,
  /// seed, batch or version, naming what differs, or no place between two batches.
  void open(const muster::cursor& there);

  /// Batches are partitioned over so many ranks from now on, which matters where they are `per_rank`.
  void deal_to(int world) noexcept { world_ = world; }

  /// Moves the cursor past its batch: the step has used it. Throws configuration_error at the end of an epoch.
  void commit();

  /// The data are a mixture: in each epoch every part goes on where it was in the one before, through epochs of its
  /// own.
  void set_mixture(std::shared_ptr<const proportions> by) {
    mixture_ = std::move(by);
    orders_of_parts_.clear();
    if (mixture_) orders_of_parts_.resize(mixture_->parts());
  }

  /// The names of classes that the labels are numbers of, if the data have them.
  void set_classes(std::vector<std::string> names) { classes_ = std::move(names); }
  [[nodiscard]] const std::vector<std::string>& classes() const noexcept { return classes_; }

  /// The data are in shards, of which each rank may have others.
  void set_sharded() noexcept { sharded_ = true; }
  /// Whether all ranks read the same data, of one version.
  [[nodiscard]] bool reads_one_source() const noexcept { return !sharded_ && !follows(); }

  /// Samples go to ranks that hold their part of the mixture; each part has one. Of none: to any.
  void deal_by(std::vector<held_shards> of_ranks);

  /// The data grow, and have versions: `open` makes one of so many samples the loader's, and returns its digest; it
  /// changes nothing when it throws. A cursor of another version can be opened then.
  /// `every` so many batches new samples join the epoch that has begun; 0: they are of the next one.
  void follow(std::function<std::uint64_t(std::uint64_t size)> open, std::uint64_t every) {
    open_version_ = std::move(open);
    every_ = every;
  }
  [[nodiscard]] bool follows() const noexcept { return static_cast<bool>(open_version_); }
  /// From the next epoch on, the version of so many samples; or once a batch is committed that says may_grow().
  void grow_to(std::uint64_t size) noexcept { grown_ = size; }

  /// Goes to the start of the next epoch, also when this one is not over. Throws what opening another version throws,
  /// and stays.
  void next_epoch() {
    const bool grows = open_version_ && grown_ != 0 && grown_ != at_.size;
    next_epoch(grows ? grown_ : at_.size, grows ? open_version_(grown_) : at_.dataset);
  }

  /// The same with data that has grown or changed since: `size` and `digest` are those from now on. An epoch keeps the
  /// size that it began with.
  void next_epoch(std::uint64_t size, std::uint64_t digest) noexcept {
    at_.size = size;
    at_.dataset = digest;
    at_ = start_of_epoch(at_);
    ++at_.epoch;
  }

  [[nodiscard]] const muster::cursor& cursor() const noexcept { return at_; }
  /// Whether the version that grow_to() has named is taken behind the batch at the cursor: the last one of its epoch,
  /// or the last of `every`, which are counted where no samples that have joined are in use.
  [[nodiscard]] bool may_grow() const noexcept;
  /// Committed steps of the current epoch; of batches `per_rank`, as if the ranks had been as many in all of it.
  [[nodiscard]] std::uint64_t step() const noexcept { return steps(at_.position); }
  /// Batches of an epoch, the last one perhaps smaller; of batches `per_rank`, of as many ranks as there are now.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept;

  /// Samples of the batch at `where`, over all of `world` ranks; 0 at the end of the epoch.
  [[nodiscard]] static std::uint64_t batch_size(const muster::cursor& where, int world = 1) noexcept;
  /// The batch after the one at `where`: of the next epoch when this one is over.
  [[nodiscard]] static muster::cursor after(const muster::cursor& where, int world = 1) noexcept {
    return after(where, batch_size(where, world));
  }
  /// The place so many samples further: of the next epoch when this one is over.
  [[nodiscard]] static muster::cursor after(const muster::cursor& where, std::uint64_t samples) noexcept;
  /// A cursor that stands for its whole epoch, and for its start, if nothing joins it.
  [[nodiscard]] static muster::cursor start_of_epoch(muster::cursor where) noexcept;
  /// The ids of the samples of the batch at `where` that `part` gets, in its order.
  void ids_of(const muster::cursor& where, batch_shard part, std::vector<sample_id>& ids);

 private:
  // A row of samples in one order of their own that a cursor is in: those that the epoch began with, or that joined
  // it together last.
  struct segment {
    std::uint64_t begin;     // its first sample
    std::uint64_t size;      // of all
    std::uint64_t end;       // of those that batches use
    std::uint64_t position;  // in it
  };
  [[nodiscard]] static segment segment_of(const muster::cursor& where) noexcept;
  // So many samples further, which may be in other epochs; at the end of one rather than at the start of the next.
  [[nodiscard]] static muster::cursor moved(muster::cursor where, std::uint64_t samples) noexcept;
  [[nodiscard]] static bool is_between_batches(const muster::cursor& at) noexcept;
  [[nodiscard]] std::uint64_t step_size() const noexcept;
  [[nodiscard]] std::uint64_t steps(std::uint64_t samples) const noexcept;
  // The samples at the positions [first, first + ids.size()) behind `where`, which are of one segment.
  void ids(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids);
  void ids_of_mixture(const muster::cursor& where, std::uint64_t first, std::span<sample_id> ids);
  void share_out(std::span<const sample_id> ids, const rank_weights& weights);

  muster::cursor at_;
  int world_ = 1;
  std::function<std::uint64_t(std::uint64_t size)> open_version_;
  std::uint64_t grown_ = 0, every_ = 0;
  bool sharded_ = false;
  std::vector<std::string> classes_;
  std::shared_ptr<const proportions> mixture_;
  std::vector<std::array<sampler, 2>> orders_of_parts_;  // each of even and odd epochs of its own
  struct place_of_part {
    std::size_t part;
    std::uint64_t before;
    std::size_t index;  // of the id
  };
  std::vector<place_of_part> places_;
  std::vector<sample_id> of_part_;
  std::vector<held_shards> of_ranks_;
  std::vector<std::vector<std::size_t>> holders_;  // ranks, by part
  std::vector<std::size_t> reader_of_;             // a rank, by sample of the batch
  std::vector<std::uint64_t> loads_;               // samples of the batch, by rank
  std::array<sampler, 2> orders_;                  // of the epoch of the cursor, and of another: batches are made ahead
};

}}}  // namespace muster::v0::detail
