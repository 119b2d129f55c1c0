// From a backward pass to an optimizer's step: reduces gradients over the ranks during the backward pass.
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
  std::size_t bucket = 4_MiB;  ///< bytes of gradients that are reduced together; a larger tensor is one bucket, and the
                               ///< last ones are smaller
  std::size_t first_bucket = 64_KiB;  ///< of the first one: small, so that communication begins early
  bucket_codec codec{};               ///< how buckets are summed; empty: uncompressed
  sync_mode mode{};                   ///< what ranks exchange
  /// With mode ps, of a training: each step names the elements of the arena that it uses (`training_step::pull`), and
  /// the servers have those alone, from 0.
  bool sparse = false;
  /// Each batch is cut into so many parts, and their gradients are summed in one order, so that the bits do not depend
  /// on the number of ranks: each pass of a step is one part (`batch_shard::virtual_shards`). 0: no parts, and the
  /// fastest order. Throws configuration_error with a codec, or a mode other than allreduce.
  int virtual_shards = 0;
  float clip = 0;  ///< gradients of a larger global norm are scaled down to it (Pascanu et al. 2013,
                   ///< https://arxiv.org/abs/1211.5063); 0: never
};

class gradient_sync;

/// One backward pass, or several that are added up; the model reports through it which gradients it has written. Lives
/// in one step, which waits for it. Its destructor, after an exception, waits until no collective uses the gradients.
class backward_pass {
 public:
  backward_pass(const backward_pass&) = delete;
  backward_pass& operator=(const backward_pass&) = delete;
  ~backward_pass();

  /// The parameters, for models that do not know the arena. Throws configuration_error for an arena on a device.
  [[nodiscard]] std::span<const float> parameter(std::size_t tensor) const;
  /// The place of a tensor's gradient; `adds` says whether the model adds to it, since an earlier pass has written it,
  /// or overwrites it.
  [[nodiscard]] std::span<float> gradient(std::size_t tensor);
  [[nodiscard]] bool adds(std::size_t tensor) const;
  /// Zeroes all gradients, before the first pass, for models that always add; as `gradient` of every tensor does, it
  /// has `end_pass` declare them.
  void clear();

  /// Counts the samples of the gradients that this rank adds: in every pass, before its last gradients are written. The
  /// gradients of a step are divided by the sum of these over all ranks; a rank without samples counts 0 or nothing.
  void add_samples(std::uint64_t count);
  /// Declares that the model has divided its gradients by `divisor`, the same at every rank: batch.global_size, for
  /// which the loss is the cheapest place, and which saves a pass over all gradients here. If bad records were left
  /// out, the difference is corrected.
  void divided_by(double divisor);

  /// Declares that this pass has written the gradient of a tensor: once a pass, in any order. The last tensor of a
  /// bucket starts its reduction, after all earlier buckets have started. Throws the errors of collectives, and
  /// configuration_error for a tensor that was declared before.
  void ready(std::size_t tensor);
  /// Declares the end of the pass, and `ready` for every gradient that `gradient` returned in it.
  void end_pass();

  /// Waits until all gradients are those of the whole batch: summed over ranks and passes, divided by the number of
  /// samples, clipped. A gradient that no pass wrote counts as zeros; throws configuration_error where this rank has
  /// counted samples and has written none. The same bits at every rank, except in modes that
  /// exchange weights: there it divides this rank's gradients by this rank's samples. Throws the errors of collectives,
  /// after which the gradients are undefined.
  void wait();

  /// After wait(): samples of the step, over all ranks.
  [[nodiscard]] std::uint64_t samples() const noexcept;
  /// After wait(), with clipping: the norm of the gradients before they were clipped.
  [[nodiscard]] double norm() const noexcept;

 private:
  friend class gradient_sync;
  backward_pass(gradient_sync& of, group* ranks, int passes);
  gradient_sync* sync_;
};

/// Reduces the gradients of an arena over the ranks of a step, bucket by bucket, each as soon as it is written.
///
///     muster::gradient_sync sync(arena, {.bucket = 4_MiB});
///     session.run(state, [&](muster::step& step) {
///       auto backward = sync.begin(step.group());
///       model.forward_backward(batch, backward);       // backward.ready(tensor) for each, from the last to the first
///       backward.wait();
///       optimizer.apply(schedule(step));
///     });
///
/// Buckets start in the same order at every rank, whatever the order in which gradients are ready. The reduction makes
/// progress while the model computes, at each `ready` or on a progress thread.
///
/// Adds to its arena's state the residuals of codecs and the steps until the next average; in modes other than
/// allreduce the parameters are rank-local and shadowed. In these modes the ranks average or mix their weights after
/// the update and before the step commits, weighted by the samples that they were trained with. Without a session,
/// which only mode allreduce allows, call `commit` after each step. One for each arena; neither moves. Used by the
/// thread that is the rank.
class gradient_sync {
 public:
  /// Of an arena on the host, which outlives it. Throws configuration_error for options that contradict each other.
  explicit gradient_sync(arena& of, const sync_options& options = {});
  /// Of gradients in other memory, such as a device's: see `gradients_on`. Throws configuration_error for a codec
  /// or a mode that exchanges weights.
  explicit gradient_sync(std::unique_ptr<gradient_backend> gradients, const sync_options& options = {});
  gradient_sync(const gradient_sync&) = delete;
  gradient_sync& operator=(const gradient_sync&) = delete;
  ~gradient_sync();

  /// Begins a step of one or more passes (micro-batches); their gradients are added up before they are reduced. Throws
  /// configuration_error while another backward pass is unfinished.
  [[nodiscard]] backward_pass begin(group& ranks, int passes = 1);
  /// The same for gradients on devices: their communicator knows the ranks.
  [[nodiscard]] backward_pass begin(int passes = 1);

  /// From the next step on, ranks share each batch by these weights, the same at all of them (`batch_shard::weights`);
  /// matters where there are virtual shards.
  void deal_by(const rank_weights& weights) { gradients_->deal_by(weights); }

  /// Collective: replaces the parameters by their mean over the ranks, in any mode, for an evaluation or a save.
  void average(group& ranks);

  /// Commits the step; a session calls it.
  void commit() noexcept;

  /// That of the gradients.
  [[nodiscard]] arena_base& of() noexcept { return gradients_->of(); }
  /// As given, and the buckets in the order in which they are started.
  [[nodiscard]] const sync_options& options() const noexcept { return options_; }
  [[nodiscard]] const std::vector<gradient_bucket>& buckets() const noexcept { return buckets_; }
  /// Bytes of gradients or weights that the last step of this rank put into collectives.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  friend class backward_pass;
  // One bucket in a step.
  struct in_flight {
    std::size_t missing = 0;  // tensors that have not been written by all passes
    std::uint64_t bytes = 0;  // of this rank, as it was sent; 0 where nothing was
    clock::time_point begin{};
  };

  [[nodiscard]] arena& on_host();
  void describe(state_parts& parts);
  [[nodiscard]] backward_pass begin(group* ranks, int passes);
  void reset(group* ranks, int passes);
  void leave() noexcept;
  void written(std::size_t tensor);
  void start_complete_buckets();
  void start(std::size_t bucket);
  void poll();
  void finish(std::size_t bucket);
  void take_count();
  void require_written() const;
  void wait();
  void tell_zeros();
  [[nodiscard]] bool exchanges_gradients() const noexcept;
  [[nodiscard]] bool keeps_passes_apart() const noexcept { return options_.virtual_shards > 0; }
  void exchange(group& ranks);
  void average_weights(group& ranks, std::uint64_t mine);

  std::unique_ptr<gradient_backend> gradients_;
  arena* arena_;  // null where the gradients are not on the host
  sync_options options_;
  std::vector<gradient_bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // of each tensor

  struct attempt {
    int passes = 1;
    bool polls = false;  // no thread moves the collectives on
    int pass = 0;        // those that are over
    bool wrote = false;  // the model has asked for the place of a gradient, or declared one ready
    std::size_t next_start = 0;
    std::size_t next_finish = 0;
    std::uint64_t samples_here = 0;
    bool counted = false;
    double divisor = 1.0;
    std::uint64_t samples = 0;
    float factor = 1.0f;
    double squares = 0.0;
  };
  bool under_way_ = false;
  attempt step_;                    // that is under way
  std::vector<int> written_;        // passes that wrote each tensor
  std::vector<char> given_;         // in this pass, by `backward_pass::gradient`
  std::vector<in_flight> flights_;  // by bucket

  // From step to step; what a step changes waits in next_ for its commit.
  struct progress {
    std::uint64_t steps = 0;
    std::uint64_t samples_since_average = 0;  // of this rank
  };
  progress now_;
  progress next_;
  bool seen_ = false;      // the first gradients of all ranks were looked at
  bool began_ = false;     // a backward pass in this step; its weights are to be exchanged
  bool complete_ = false;  // a backward pass of this step has its gradients
  std::uint64_t bytes_sent_ = 0;
  std::vector<float> scratch_;
};

}}  // namespace muster::v0
