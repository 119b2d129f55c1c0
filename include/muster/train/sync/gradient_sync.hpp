// From a backward pass to an optimizer's step: gradients of all ranks become one, while they are still being made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/comm/work.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/clock.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/sync/bucket.hpp>
#include <muster/train/sync/gradient_backend.hpp>
#include <muster/train/sync/sync_mode.hpp>

namespace muster::inline v0 {

/// How a gradient_sync works.
struct sync_options {
  std::size_t bucket = 4_MiB;  ///< bytes of gradients that are reduced together; a larger tensor is one bucket, and the
                               ///< last ones are smaller
  std::size_t first_bucket = 64_KiB;  ///< of the first one: small, so that communication begins early
  bucket_codec codec = no_codec;      ///< how buckets are summed
  sync_mode mode{};                   ///< what ranks exchange
  float clip = 0;                     ///< gradients of a larger global norm are scaled down to it (Pascanu et al. 2013,
                                      ///< https://arxiv.org/abs/1211.5063); 0: never
};

class gradient_sync;

/// One backward pass, or several that are added up, under way; what the model tells which gradients are written. Lives
/// in one step and is waited for there. Leaving it otherwise, by an exception, waits until no collective touches
/// the gradients.
class backward_pass {
 public:
  backward_pass(const backward_pass&) = delete;
  backward_pass& operator=(const backward_pass&) = delete;
  ~backward_pass();

  /// What the model computes with, so that it need not know the arena; of devices it has to, and these throw
  /// configuration_error.
  [[nodiscard]] std::span<const float> parameter(std::size_t tensor) const;
  /// Where a tensor's gradient goes, and whether it is to be added to what is there (a pass before has written it) or
  /// to replace it, as `adds` says.
  [[nodiscard]] std::span<float> gradient(std::size_t tensor);
  [[nodiscard]] bool adds(std::size_t tensor) const;
  /// For models that only ever add: zeros in all gradients, before the first pass.
  void clear();

  /// Counts samples whose gradients this rank adds: in every pass, before its last gradients are written. The gradients
  /// of a step are divided by the sum of these over all ranks; a rank without samples counts 0 or nothing.
  void add_samples(std::uint64_t count);
  /// Says that the model has divided its gradients by `divisor`, the same at every rank: by batch.global_size, which
  /// costs nothing where the loss is made and saves a pass over all gradients here. What records left out make
  /// different is made up for.
  void divided_by(double divisor);

  /// Says that this pass has written the gradient of a tensor: once a pass, in any order. When it was the last of its
  /// bucket, and all buckets before it have left, the bucket leaves. Throws what collectives throw; configuration_error
  /// for a tensor that was written before.
  void ready(std::size_t tensor);
  /// Says that the pass is over, and it of every gradient that `gradient` gave in the pass and that was not said of
  /// yet.
  void end_pass();

  /// Waits until all gradients are those of the whole batch: summed over ranks and passes, divided by the number of
  /// samples, clipped. A gradient that no pass wrote counts as zeros. The same bits at every rank, except in modes that
  /// exchange weights: there it divides this rank's own by this rank's samples. Throws what collectives throw, and
  /// then nothing of the gradients may be used.
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
/// Buckets leave in one order at every rank, whatever the order in which gradients are ready. Reduction goes on while
/// the model computes, at each `ready` or, with a progress thread, by itself.
///
/// Is part of its arena's state: what codecs keep, when weights are averaged next, and in modes other than allreduce
/// that parameters are each rank's own and shadowed. In these modes the session has ranks average or mix their weights
/// after the update and before the step commits, in proportion to the samples that they were trained with. Without a
/// session, which only mode allreduce can do, call `commit` after each step. One an arena; both stay where they are.
/// Used by the thread that is the rank.
class gradient_sync {
 public:
  /// Of an arena on the host, which outlives it. Throws configuration_error for options that contradict each other.
  explicit gradient_sync(arena& of, const sync_options& options = {});
  /// Of gradients that lie elsewhere, as those of a device: see `gradients_on`. Throws configuration_error for a codec
  /// or a mode that exchanges weights.
  explicit gradient_sync(std::unique_ptr<gradient_backend> gradients, const sync_options& options = {});
  gradient_sync(const gradient_sync&) = delete;
  gradient_sync& operator=(const gradient_sync&) = delete;
  ~gradient_sync();

  /// Begins a step of so many passes (micro-batches), whose gradients are added up before anything is sent. Throws
  /// configuration_error while another is under way.
  [[nodiscard]] backward_pass begin(group& ranks, int passes = 1);
  /// The same for gradients on devices, whose communicator knows the ranks.
  [[nodiscard]] backward_pass begin(int passes = 1);

  /// Collective: the parameters become the mean over the ranks, whatever the mode: before they are evaluated or saved.
  void average(group& ranks);

  /// The step counts. A session does that.
  void commit() noexcept;

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

  gradient_sync(std::unique_ptr<gradient_backend> gradients, arena* on_host, const sync_options& options);
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
  void wait();
  [[nodiscard]] bool exchanges_gradients() const noexcept;
  void exchange(group& ranks);
  void average_weights(group& ranks, std::uint64_t mine);

  std::unique_ptr<gradient_backend> gradients_;
  arena* arena_;  // null where the gradients are not on the host
  sync_options options_;
  std::vector<gradient_bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // of each tensor

  // The step under way.
  bool under_way_ = false;
  group* ranks_ = nullptr;
  int passes_ = 1;
  bool polls_ = false;              // no thread moves the collectives on
  std::vector<int> written_;        // passes that wrote each tensor
  std::vector<char> given_;         // in this pass, by `backward_pass::gradient`
  int pass_ = 0;                    // those that are over
  std::vector<in_flight> flights_;  // by bucket
  work count_under_way_;            // of samples, where it does not travel with the first bucket
  std::size_t next_start_ = 0;
  std::size_t next_finish_ = 0;
  std::uint64_t samples_here_ = 0;
  bool counted_ = false;
  double divisor_ = 1.0;
  std::uint64_t samples_ = 0;
  float factor_ = 1.0f;
  double squares_ = 0.0;

  // From step to step; what a step changes waits in next_ for its commit.
  struct progress {
    std::uint64_t steps = 0;
    std::uint64_t samples_since_average = 0;  // of this rank
  };
  progress now_;
  progress next_;
  bool began_ = false;  // a backward pass in this step, whose weights are to be exchanged
  std::uint64_t bytes_sent_ = 0;
  std::vector<float> scratch_;
};

}  // namespace muster::inline v0
