// The samples of each step: a cursor, the rules by which the cursor moves, and the order of the samples.
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
#include <muster/data/order/block_window.hpp>
#include <muster/data/order/feistel.hpp>
#include <muster/data/order/permutation.hpp>
#include <muster/data/order/proportions.hpp>

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// The order of the samples in one epoch, for any sample_order. A value.
class sampler {
 public:
  /// Creates the order of zero samples.
  sampler() = default;

  /// Becomes the order of the epoch that contains `position`. The order depends only on the cursor's order, seed,
  /// epoch, size, block and window. O(size) for a `shuffled` epoch, in the memory of the previous epoch. O(1) for the
  /// other orders, and if this is already the order of the epoch. Throws configuration_error for a size that the order
  /// does not support.
  void assign(const cursor& position);

  /// Returns true if assign(where) would change nothing.
  [[nodiscard]] bool is_order_of(const cursor& position) const noexcept;
  /// Writes the samples at the positions [first, first + ids.size()) of the epoch to `ids`. O(ids.size()).
  void fill(std::uint64_t first, std::span<sample_id> ids) const noexcept;

 private:
  cursor epoch_start_;
  permutation exact_;
  feistel_permutation feistel_;
  block_window_permutation blocks_;
};

/// The steps of all epochs: the part of a loader that does not access the data. A value, used by one thread at a time.
class batch_sampler {
 public:
  /// Starts at `start`, whose batch size must not be 0.
  explicit batch_sampler(const data::cursor& start) noexcept : cursor_(start) {}

  /// Moves to `start`. Throws configuration_error, and does not move, if `start` is a cursor of
  /// another dataset, order, seed, batch size or version, or is not at a boundary between two batches. The error names
  /// the difference.
  void open(const data::cursor& start);

  /// Sets the number of ranks among which batches are divided. It matters if the batch size is `per_rank`.
  void set_world(int world) noexcept { world_ = world; }

  /// Moves the cursor past its batch, after the step has used the batch. Throws configuration_error at the end of an
  /// epoch.
  void commit();

  /// Declares that the data are a mixture. In each epoch every part continues at its position at the end of the
  /// previous epoch, through epochs of its own.
  void set_mixture(std::shared_ptr<const proportions> order) {
    mixture_ = std::move(order);
    orders_of_parts_.clear();
    if (mixture_) orders_of_parts_.resize(mixture_->parts());
  }

  /// Sets the names of the classes. The labels are the classes' numbers. Empty for data without named classes.
  void set_classes(std::vector<std::string> names) { classes_ = std::move(names); }
  [[nodiscard]] const std::vector<std::string>& classes() const noexcept { return classes_; }

  /// Declares that ranks may have different shards of the data. Ranks then do not compare the size and the digest of
  /// their data. The order of the samples stays the same at all ranks.
  void set_sharded() noexcept { sharded_ = true; }
  /// Returns true if all ranks read the same data in a single version.
  [[nodiscard]] bool reads_one_source() const noexcept { return !sharded_ && !follows(); }

  /// Assigns samples to ranks that hold the sample's part of the mixture. Each part needs at least one such rank. An
  /// empty list: a sample may be assigned to any rank.
  void assign_samples_to(std::vector<held_shards> held);

  /// Declares that the data grow and have versions. `open` makes the version with `size` samples the loader's source
  /// and returns its digest. If `open` throws, nothing has changed. Cursors of other versions can then be opened. After
  /// every `every` batches new samples join the running epoch. 0: new samples join at the next epoch.
  void follow(std::function<std::uint64_t(std::uint64_t size)> open, std::uint64_t every) {
    open_version_ = std::move(open);
    every_ = every;
  }
  [[nodiscard]] bool follows() const noexcept { return static_cast<bool>(open_version_); }
  /// Selects the version with `size` samples, from the next epoch on, or from the commit of a batch for which
  /// may_grow() is true.
  void grow_to(std::uint64_t size) noexcept { selected_size_ = size; }

  /// Moves to the start of the next epoch, also before the end of the current epoch. If opening another version throws,
  /// the exception is passed on and the cursor does not move.
  void next_epoch() {
    const bool grows = open_version_ && selected_size_ != 0 && selected_size_ != cursor_.size;
    next_epoch(grows ? selected_size_ : cursor_.size, grows ? open_version_(selected_size_) : cursor_.dataset);
  }

  /// Moves to the start of the next epoch after the data have grown or changed: `size` and `digest` are the new values.
  /// A running epoch keeps the size with which it began.
  void next_epoch(std::uint64_t size, std::uint64_t digest) noexcept {
    cursor_.size = size;
    cursor_.dataset = digest;
    cursor_ = start_of_epoch(cursor_);
    ++cursor_.epoch;
  }

  [[nodiscard]] const data::cursor& cursor() const noexcept { return cursor_; }
  /// Returns true if the version selected by grow_to() takes effect after the batch at the cursor: the last batch of
  /// its epoch, or the last of `every` batches. Batches are counted only while no joined samples are in use.
  [[nodiscard]] bool may_grow() const noexcept;
  /// Returns the number of committed steps in the current epoch. With `per_rank` it assumes the current number of ranks
  /// for the whole epoch.
  [[nodiscard]] std::uint64_t step() const noexcept { return steps(cursor_.position); }
  /// Returns the number of batches in an epoch. The last batch may be smaller. With `per_rank` it assumes the current
  /// number of ranks.
  [[nodiscard]] std::uint64_t steps_per_epoch() const noexcept;

  /// Returns the number of samples in the batch at `position`, over all `world` ranks, or 0 at the end of the epoch.
  [[nodiscard]] static std::uint64_t batch_size(const data::cursor& position, int world = 1) noexcept;
  /// Returns the position of the batch after the batch at `position`. At the end of an epoch it is the first batch of
  /// the next epoch.
  [[nodiscard]] static data::cursor after(const data::cursor& position, int world = 1) noexcept {
    return after(position, batch_size(position, world));
  }
  /// Returns the position `samples` samples after `position`. At the end of an epoch it is the start of the next epoch.
  [[nodiscard]] static data::cursor after(const data::cursor& position, std::uint64_t samples) noexcept;
  /// Returns the cursor at the start of the epoch without joined samples. It identifies the epoch.
  [[nodiscard]] static data::cursor start_of_epoch(data::cursor position) noexcept;
  /// Writes the ids of `shard`'s samples in the batch at `position`, in order, to `ids`.
  void ids_of(const data::cursor& position, batch_shard shard, std::vector<sample_id>& ids);

 private:
  // A run of samples with an order of its own that contains a cursor: the samples with which the epoch began, or the
  // samples that joined in the most recent addition.
  struct segment {
    std::uint64_t begin;     // first sample
    std::uint64_t size;      // number of samples
    std::uint64_t end;       // number of samples that batches use
    std::uint64_t position;  // position of the cursor in the segment
  };
  [[nodiscard]] static segment segment_of(const data::cursor& position) noexcept;
  // Returns the position `samples` samples after `place`, perhaps in a later epoch. At a boundary it is the end of
  // the epoch and not the start of the next epoch.
  [[nodiscard]] static data::cursor advanced(data::cursor position, std::uint64_t samples) noexcept;
  [[nodiscard]] static bool is_between_batches(const data::cursor& place) noexcept;
  [[nodiscard]] std::uint64_t step_size() const noexcept;
  [[nodiscard]] std::uint64_t steps(std::uint64_t samples) const noexcept;
  // Writes the samples at the positions [first, first + ids.size()) after `position` to `ids`. They must be in a single
  // segment.
  void ids(const data::cursor& position, std::uint64_t first, std::span<sample_id> ids);
  void ids_of_mixture(const data::cursor& position, std::uint64_t first, std::span<sample_id> ids);
  void assign_ranks(std::span<const sample_id> ids, const rank_weights& weights);

  data::cursor cursor_;
  int world_ = 1;
  std::function<std::uint64_t(std::uint64_t size)> open_version_;
  std::uint64_t selected_size_ = 0, every_ = 0;
  bool sharded_ = false;
  std::vector<std::string> classes_;  // names, by number
  std::shared_ptr<const proportions> mixture_;
  std::vector<std::array<sampler, 2>> orders_of_parts_;  // the orders of the part's even and odd epochs
  struct place_of_part {
    std::size_t part;
    std::uint64_t earlier;  // number of earlier positions of the part
    std::size_t index;      // index of the id in the batch
  };
  std::vector<place_of_part> places_;
  std::vector<sample_id> ids_of_part_;
  std::vector<held_shards> held_by_rank_;
  std::vector<std::vector<std::size_t>> holders_;  // ranks that hold the part, by part
  std::vector<std::size_t> assigned_rank_;         // assigned rank, by sample of the batch
  std::vector<std::uint64_t> loads_;               // number of assigned samples, by rank
  // the order of the cursor's epoch, and the order of another epoch, because batches are prepared ahead
  std::array<sampler, 2> orders_;
};

}}}}  // namespace muster::v0::data::detail
