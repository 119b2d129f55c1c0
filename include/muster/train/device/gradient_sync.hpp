// From a backward pass on a device to the gradients of the whole batch there, bucket by bucket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <muster/comm/nccl/communicator.hpp>
#include <muster/core/bytes.hpp>
#include <muster/core/device/memory.hpp>
#include <muster/train/device/arena.hpp>

namespace muster::inline v0 {

/// How a device_gradient_sync works.
struct device_sync_options {
  std::size_t bucket = 25_MiB;       ///< bytes of gradients that are reduced together; the last ones are smaller
  std::size_t first_bucket = 1_MiB;  ///< of the first one: small, so that communication begins early
  /// float32; float16 or bfloat16 send half the bytes, and round each gradient and once more with each rank.
  dtype send_as = dtype::float32;
  float clip = 0;  ///< gradients of a larger global norm are scaled down to it; 0: never
};

class device_gradient_sync;

/// One backward pass under way; lives in one step and is waited for there. Leaving it otherwise, by an exception, waits
/// until no device touches the gradients for it any more.
class device_backward_pass {
 public:
  device_backward_pass(const device_backward_pass&) = delete;
  device_backward_pass& operator=(const device_backward_pass&) = delete;
  ~device_backward_pass();

  /// Counts samples whose gradients this rank adds, before the first `ready`: gradients are sums over samples, and are
  /// divided by the number of samples of all ranks.
  void add_samples(std::uint64_t count);
  /// Says that what writes the gradient of a tensor has been put on the arena's stream: once each, in any order. The
  /// last of a bucket lets it leave, behind that, on a stream of its own; the processor waits for nothing. Throws what
  /// collectives throw; configuration_error for a tensor that was written before.
  void ready(std::size_t tensor);
  /// Has the processor wait until every bucket is reduced: so that an optimizer's step, which changes parameters for
  /// good, is put on the stream only when nothing can fail any more. Then the gradients are those of the whole batch:
  /// summed over the ranks, divided, clipped; the same bits at each; what is put on the arena's stream sees them so.
  /// One that was not written counts as zeros. Throws what collectives throw, and then nothing of them may be used.
  void wait();
  /// After wait(): samples of the step over all ranks, and with clipping the norm before it.
  [[nodiscard]] std::uint64_t samples() const noexcept;
  [[nodiscard]] double norm() const noexcept;

 private:
  friend class device_gradient_sync;
  device_backward_pass(device_gradient_sync& of, nccl::communicator& all);
  device_gradient_sync* sync_;
};

/// Reduces the gradients of a device's arena over the ranks of a communicator, each bucket as soon as it is written.
///
///     session.run(state, [&](muster::step& step) {
///       auto backward = sync.begin(devices);
///       backward.add_samples(batch.size());
///       model.forward_backward(batch, backward);  // puts kernels on the arena's stream, and calls ready(tensor)
///       backward.wait();
///       optimizer.apply(schedule(step));
///     });
///
/// In an elastic session `devices.rebuild(group)` in `on_rebuild` connects those that are left; what a dead rank does
/// to a step is thrown by `ready` or `wait` as peer_failure or timeout_error, by which the session knows what to do.
/// Used by the thread that is the rank; stays where it is.
class device_gradient_sync {
 public:
  /// Throws configuration_error for options that cannot be.
  explicit device_gradient_sync(device_arena& of, const device_sync_options& options = {});
  device_gradient_sync(const device_gradient_sync&) = delete;
  device_gradient_sync& operator=(const device_gradient_sync&) = delete;

  /// Throws configuration_error while another pass is under way.
  [[nodiscard]] device_backward_pass begin(nccl::communicator& all);

  [[nodiscard]] std::size_t buckets() const noexcept { return buckets_.size(); }
  /// Bytes of gradients that the last step of this rank put into collectives.
  [[nodiscard]] std::uint64_t bytes_sent() const noexcept { return bytes_sent_; }

 private:
  friend class device_backward_pass;
  struct bucket {
    block part;
    std::vector<std::size_t> tensors;
    std::size_t missing = 0;
  };

  void reset(nccl::communicator& all);
  void leave() noexcept;
  void written(std::size_t tensor);
  void start_complete_buckets();
  void start(std::size_t index);
  template <class Half>
  void start_halves(device_span<float> values, device_span<Half> halves);
  void wait();
  void clip();

  device_arena* arena_;
  device_sync_options options_;
  std::vector<bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  // of each tensor
  device_stream stream_;                // of communication
  device_buffer<std::uint16_t> halves_;
  device_buffer<double> sums_;

  // The pass under way.
  nccl::communicator* all_ = nullptr;  // null between passes
  std::vector<bool> written_;
  std::vector<nccl::work> under_way_;
  std::size_t next_start_ = 0;
  std::uint64_t samples_here_ = 0;
  std::uint64_t samples_ = 0;
  double norm_ = 0;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace muster::inline v0
