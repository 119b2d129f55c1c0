// Reduces gradients over the ranks during the backward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/clock.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/sync/gradient_backend.hpp>
#include <muster/train/sync/sync_mode.hpp>

namespace muster { inline namespace v0 {

/// Options of a gradient_sync.
struct sync_options {
  std::size_t bucket = 4_MiB;  ///< bytes of gradients in one reduction; a larger tensor is a bucket by itself, and the
                               ///< last buckets are smaller
  std::size_t first_bucket = 64_KiB;  ///< size of the first bucket; a small first bucket starts communication early
  bucket_codec codec{};               ///< method that sums buckets; empty: uncompressed
  sync_mode mode{};                   ///< kind of data that ranks exchange
  /// For a training in mode ps: each step names the elements of the arena that it uses (`training_step::pull`), and the
  /// servers hold only these elements, initially 0.
  bool sparse = false;
  /// Number of parts per batch, whose gradients are summed in a fixed order, so that the bits do not depend on the
  /// number of ranks: each pass of a step is one part (`batch_shard::virtual_shards`). 0: no parts, and the fastest
  /// order. Throws configuration_error with a codec, or a mode other than allreduce.
  int virtual_shards = 0;
  /// Set to sum gradients exactly (`collective_options::reproducible`): the mean depends on the gradients of the ranks
  /// alone, not on algorithms, transports and buckets. Virtual shards have these bits in any case. Throws
  /// configuration_error with a codec, on a device, or in a mode other than allreduce.
  bool reproducible = false;
  float clip = 0;  ///< largest global norm; gradients with a larger norm are scaled down to it (Pascanu et al. 2013,
                   ///< https://arxiv.org/abs/1211.5063); 0: no limit
};

class gradient_sync;

/// A backward pass, or several passes whose gradients are added up. Through it the model reports the gradients that are
/// written. Exists within one step, which waits for the pass. After an exception the destructor blocks until no
/// collective uses the gradients.
class backward_pass {
 public:
  backward_pass(const backward_pass&) = delete;
  backward_pass& operator=(const backward_pass&) = delete;
  ~backward_pass();

  /// Returns the parameters, for models without access to the arena. Throws configuration_error for an arena on a
  /// device.
  [[nodiscard]] std::span<const float> parameter(std::size_t tensor) const;
  /// Returns the place of a tensor's gradient. `adds` returns true if the model must add to it, because an earlier pass
  /// has written it, and false if the model must overwrite it: always false with virtual shards.
  [[nodiscard]] std::span<float> gradient(std::size_t tensor);
  [[nodiscard]] bool adds(std::size_t tensor) const;
  /// Zeroes all gradients, before the first pass, for models that always add. Like a call of `gradient` for every
  /// tensor, it makes `end_pass` declare all gradients ready.
  void clear();

  /// Counts the samples of the gradients that this rank adds. Call it in every pass, before the pass writes gradients.
  /// Throws configuration_error after the first bucket has started. The gradients of a step are divided by the sum of
  /// the counts over all ranks. A rank without samples counts 0 or does not call it.
  void add_samples(std::uint64_t samples);
  /// Declares that the model has already divided its gradients by `divisor`, with the same value at every rank:
  /// batch.global_size. Dividing in the loss is cheapest, and saves a pass over all gradients here. If bad records were
  /// skipped, `wait` corrects the difference.
  void divided_by(double divisor);

  /// Declares that this pass has written the gradient of a tensor: once per pass, in any order. The last tensor of a
  /// bucket starts the bucket's reduction, after all earlier buckets have started. Throws the errors of collectives,
  /// and configuration_error for a tensor that was already declared.
  void ready(std::size_t tensor);
  /// Declares the end of the pass, and `ready` for every gradient that `gradient` returned in the pass.
  void end_pass();

  /// Waits until all gradients belong to the whole batch: summed over ranks and passes, divided by the number of
  /// samples, clipped. A gradient that no pass wrote counts as zeros. Throws configuration_error where this rank has
  /// counted samples and written no gradient, or written gradients although no rank has counted samples. The result has
  /// the same bits at every rank, except in modes that exchange weights, which divide this rank's gradients by this
  /// rank's samples. Throws the errors of collectives, after which the gradients are undefined.
  void wait();

  /// Returns the samples of the step, over all ranks. Call it after wait().
  [[nodiscard]] std::uint64_t samples() const noexcept;
  /// Returns the norm of the gradients before clipping. Call it after wait(), with clipping.
  [[nodiscard]] double norm() const noexcept;

 private:
  friend class gradient_sync;
  backward_pass(gradient_sync& owner, group* ranks, int passes);
  gradient_sync* sync_;
};

/// A reducer of an arena's gradients over the ranks of a step, which starts each bucket as soon as it is written.
///
///     muster::gradient_sync sync(arena, {.bucket = 4_MiB});
///     session.run(state, [&](muster::step& step) {
///       auto backward = sync.begin(step.group());
///       model.forward_backward(batch, backward);       // backward.ready(tensor) for each, from the last to the first
///       backward.wait();
///       optimizer.apply(schedule(step));
///     });
///
/// Buckets start in the same order at every rank, independent of the order in which gradients become ready. The
/// reduction progresses while the model computes, at each `ready` or on a progress thread.
///
/// The arena's state contains the residuals of codecs and the number of steps until the next average. In modes other
/// than allreduce the parameters are rank-local and shadowed: the ranks average or mix their weights after the update
/// and before the step commits, weighted by the samples of their training. Without a session, which only mode allreduce
/// allows, call `commit` after each step. An arena has at most one gradient_sync, and neither moves. Use it on the
/// thread that is the rank.
class gradient_sync {
 public:
  /// Reduces the gradients of an arena on the host, which must outlive the gradient_sync. Throws configuration_error
  /// for options that contradict each other.
  explicit gradient_sync(arena& tensors, const sync_options& options = {});
  /// Reduces gradients in other memory, such as a device's: see `gradients_on`. Throws configuration_error for a codec
  /// or a mode that exchanges weights.
  explicit gradient_sync(std::unique_ptr<gradient_backend> gradients, const sync_options& options = {});
  gradient_sync(const gradient_sync&) = delete;
  gradient_sync& operator=(const gradient_sync&) = delete;
  ~gradient_sync();

  /// Begins a step with one or more passes (micro-batches), whose gradients are added up before the reduction. Throws
  /// configuration_error while another backward pass is unfinished.
  [[nodiscard]] backward_pass begin(group& ranks, int passes = 1);
  /// Begins a step for gradients on devices, whose communicator knows the ranks.
  [[nodiscard]] backward_pass begin(int passes = 1);

  /// Sets the weights by which ranks share each batch from the next step on, the same at all ranks
  /// (`batch_shard::weights`). Only virtual shards depend on the weights.
  void deal_by(const rank_weights& weights) { gradients_->deal_by(weights); }

  /// Replaces the parameters by their mean over the ranks, in any mode, for an evaluation or a save. Collective.
  void average(group& ranks);

  /// Commits the step. The session calls it.
  void commit() noexcept;

  /// Returns the arena that contains the gradients.
  [[nodiscard]] arena_base& base_arena() noexcept { return gradients_->base_arena(); }
  /// Returns the options of the constructor's argument, and the buckets in the order of their start.
  [[nodiscard]] const sync_options& options() const noexcept { return options_; }
  [[nodiscard]] const std::vector<gradient_bucket>& buckets() const noexcept { return buckets_; }
  /// Returns the bytes of gradients or weights that this rank's last step put into collectives.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  friend class backward_pass;
  // The state of a bucket in a step.
  struct bucket_progress {
    std::size_t missing = 0;  // tensors that some pass has not written yet
    std::uint64_t bytes = 0;  // bytes that this rank sent; 0 if it sent none
    clock::time_point begin{};
  };

  [[nodiscard]] arena& on_host();
  void describe(state_parts& parts);
  [[nodiscard]] backward_pass begin(group* ranks, int passes);
  void reset(group* ranks, int passes);
  void abandon_step() noexcept;
  void note_written(std::size_t tensor);
  void start_complete_buckets();
  void start(std::size_t bucket);
  void poll();
  void finish(std::size_t bucket);
  void read_sample_count();
  void require_written() const;
  void wait();
  [[nodiscard]] bool examines_own() const noexcept;
  void warn_about_zeros();
  [[nodiscard]] bool exchanges_gradients() const noexcept;
  [[nodiscard]] bool keeps_passes_apart() const noexcept { return options_.virtual_shards > 0; }
  void exchange(group& ranks);
  void average_weights(group& ranks, std::uint64_t mine);

  std::unique_ptr<gradient_backend> gradients_;
  arena* arena_;  // null where the gradients are not on the host
  sync_options options_;
  std::vector<gradient_bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // bucket index by tensor

  struct attempt {
    int passes = 1;
    bool polls = false;  // true where no thread advances the collectives
    int pass = 0;        // number of finished passes
    bool wrote = false;  // the model has requested the place of a gradient, or declared a gradient ready
    std::size_t next_start = 0;
    std::size_t next_finish = 0;
    std::uint64_t samples_here = 0;
    bool counted = false;
    double divisor = 1.0;
    std::uint64_t samples = 0;
    double factor = 1.0;
    double squares = 0.0;
    double own_squares = 0.0;  // of this rank's gradients before the exchange, in the first step
  };
  bool under_way_ = false;
  attempt step_;                 // the step in progress
  std::vector<int> written_;     // number of passes that wrote each tensor
  std::vector<char> requested_;  // set for each tensor that `backward_pass::gradient` returned in this pass
  std::vector<bucket_progress> bucket_progress_;  // by bucket

  // Progress that persists between steps. A step changes `next_progress_`, which its commit copies to `progress_`.
  struct progress {
    std::uint64_t steps = 0;
    std::uint64_t samples_since_average = 0;  // samples at this rank
  };
  progress progress_;
  progress next_progress_;
  bool examined_ = false;  // set when the first gradients were examined
  bool began_ = false;     // a backward pass ran in this step, so its weights must be exchanged
  bool complete_ = false;  // set when a backward pass in this step has complete gradients
  std::uint64_t bytes_sent_ = 0;
  std::vector<float> scratch_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
