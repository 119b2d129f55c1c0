// Where gradients lie, and how ranks sum them: the seam between gradient_sync and the memory of the host or of a
// device, and for ways to sum buckets that send less than all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/train/arena.hpp>

namespace muster { inline namespace v0 {

/// Gradients that are reduced together.
struct gradient_bucket {
  block part;                          ///< where they lie in arena::gradients(), the gaps between them included
  std::vector<std::size_t> tensors{};  ///< indices into arena::shapes(), in the order in which they lie
};

/// The gradients of an arena, for one gradient_sync. In each step it calls `begin`; `start` for every bucket in their
/// order, as soon as its gradients are written; `wait` likewise, and then the arithmetic; `finish`. Or `abandon` at any
/// time. Ranks make the same calls in the same order, so that `start` and `wait` may call collectives. After `wait` the
/// bucket holds the sum over all ranks, or what stands for it, with the same bits at each.
class gradient_backend {
 public:
  gradient_backend() = default;
  gradient_backend(const gradient_backend&) = delete;
  gradient_backend& operator=(const gradient_backend&) = delete;
  virtual ~gradient_backend() = default;

  /// That of the gradients.
  [[nodiscard]] virtual arena_base& of() noexcept = 0;
  /// Once, before the first step; the buckets outlive it.
  virtual void attach(std::span<const gradient_bucket> buckets) = 0;
  /// How ranks share each batch from the next step on: where the order in which passes are summed goes by it.
  virtual void deal_by(const rank_weights& /*weights*/) {}
  /// A step among these ranks; null where the program has named none. Throws configuration_error when it needs them.
  /// `step` counts committed steps, so a step that is run again has the same: what is random goes by it.
  virtual void begin(group* ranks, std::uint64_t step) = 0;
  /// A pass that is not the last of its step has written all gradients: where passes are summed in an order of their
  /// own.
  virtual void end_pass() {}
  /// Starts summing a bucket over the ranks, with the two numbers in front of the first one; returns the bytes of it
  /// that this rank put into collectives. Does not wait.
  virtual std::size_t start(std::size_t bucket) = 0;
  /// Whether a bucket that was started is summed, without waiting; also false where looking is no use.
  [[nodiscard]] virtual bool test(std::size_t bucket) = 0;
  /// Returns the bytes that it put into further collectives.
  virtual std::size_t wait(std::size_t bucket) = 0;
  /// What the model does next sees the gradients as they are now.
  virtual void finish() = 0;
  /// The step has failed or was left: returns when nothing touches the gradients any more.
  virtual void abandon() noexcept = 0;
  /// The last step, which was finished, has committed: what it leaves to the next one (residuals, factors) counts.
  virtual void commit() noexcept {}
  /// What it keeps from step to step, as a state_owner.
  virtual void describe(state_parts& /*parts*/) {}

  /// Two numbers that are summed with the first bucket.
  virtual void put_head(const std::array<float, 2>& numbers) = 0;
  [[nodiscard]] virtual std::array<float, 2> head() = 0;
  /// A part of the gradients: zeros, each times `by`, the sum of the squares.
  virtual void clear(const block& part) = 0;
  virtual void scale(const block& part, float by) = 0;
  [[nodiscard]] virtual double sum_of_squares(const block& part) = 0;
};

/// What `sync_options::codec` takes: makes what sums the gradients of an arena, such as a class derived from
/// `host_gradients`. An empty one: buckets are summed as they are.
using bucket_codec = std::function<std::unique_ptr<gradient_backend>(arena&)>;

}}  // namespace muster::v0
