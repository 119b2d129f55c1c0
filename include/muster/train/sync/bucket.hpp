// Buckets of gradients, and the seam for ways to sum one that send less than all of it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <muster/comm/group.hpp>
#include <muster/elastic/state.hpp>
#include <muster/train/arena.hpp>

namespace muster::inline v0 {

/// Gradients that are reduced together.
struct gradient_bucket {
  block part;                          ///< where they lie in arena::gradients(), the gaps between them included
  std::vector<std::size_t> tensors{};  ///< indices into arena::shapes(), in the order in which they lie
};

/// Sums buckets over the ranks in some other way than by one allreduce of all their bytes each. Used by one
/// gradient_sync, by the thread that is the rank.
///
/// Each step, `begin` is called for every bucket, in their order, as soon as its gradients are written; then `finish`
/// for every bucket, in their order. Ranks make the same calls in the same order, so that either may call collectives
/// on the group; `begin` should start them and not wait. After `finish` the bucket holds the sum over all ranks, or
/// what stands for it, with the same bits at each. What `begin` was called for is the reducer's until then.
class bucket_reducer {
 public:
  bucket_reducer() = default;
  bucket_reducer(const bucket_reducer&) = delete;
  bucket_reducer& operator=(const bucket_reducer&) = delete;
  virtual ~bucket_reducer() = default;

  /// Once, before the first step: what there is to reduce. The arena and the buckets' values outlive it.
  virtual void attach(arena& of, std::span<const gradient_bucket> buckets) = 0;
  /// `step` counts committed steps, so a step that is run again has the same: what is random goes by it.
  virtual void begin(group& ranks, std::size_t bucket, std::uint64_t step) = 0;
  virtual void finish(group& ranks, std::size_t bucket) = 0;
  /// The step has failed or was left: returns when nothing touches the buckets any more. What steps leave behind
  /// (residuals, factors) is as after the last one that was committed; the hooks of `describe` say when that is.
  virtual void abandon() noexcept = 0;
  /// Bytes of this rank that the last step put into collectives.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const noexcept = 0;
  /// What it keeps from step to step, as a state_owner.
  virtual void describe(state_parts& parts) = 0;
};

/// What `sync_options::codec` takes: a reducer for one gradient_sync, or `no_codec`, by which buckets are summed as
/// they are.
class bucket_codec {
 public:
  bucket_codec() noexcept = default;
  /// Shares the reducer, which is for one gradient_sync.
  template <std::derived_from<bucket_reducer> Reducer>
  bucket_codec(std::shared_ptr<Reducer> reducer) noexcept : reducer_(std::move(reducer)) {}  // NOLINT: converts

  /// Null for none.
  [[nodiscard]] const std::shared_ptr<bucket_reducer>& reducer() const noexcept { return reducer_; }

 private:
  std::shared_ptr<bucket_reducer> reducer_;
};
/// Buckets are summed uncompressed.
inline const bucket_codec no_codec{};

}  // namespace muster::inline v0
