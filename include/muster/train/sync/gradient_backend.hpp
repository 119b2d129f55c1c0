// The interface between gradient_sync and the memory that holds the gradients (host or device), also implemented by
// methods that send compressed buckets.
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

/// The gradients that one reduction sums.
struct gradient_bucket {
  block elements;                      ///< place in arena::gradients(), including the gaps between tensors
  std::vector<std::size_t> tensors{};  ///< indices into arena::shapes(), in the order of their places
};

/// The gradients of an arena, as used by one gradient_sync. In each step the gradient_sync makes these calls. First
/// `begin`. Then `start` for every bucket in their order, as soon as the bucket's gradients are written. Then, in the
/// same order, `wait` for each bucket for which `test` has not returned true, followed by the arithmetic. Last
/// `finish`. `abandon` may be called at any time. Ranks make the same calls in the same order, so `start` and `wait`
/// may call collectives. After `wait`, or after `test` has returned true, the bucket holds the sum over all ranks, or
/// its approximation, with the same bits at each rank.
class gradient_backend {
 public:
  gradient_backend() = default;
  gradient_backend(const gradient_backend&) = delete;
  gradient_backend& operator=(const gradient_backend&) = delete;
  virtual ~gradient_backend() = default;

  /// Returns the arena that contains the gradients.
  [[nodiscard]] virtual arena_base& base_arena() noexcept = 0;
  /// Sets the buckets. Called once, before the first step. The buckets outlive the backend.
  virtual void attach(std::span<const gradient_bucket> buckets) = 0;
  /// Sets the share of each rank in the batches from the next step on. The order of summation of passes may depend on
  /// these weights.
  virtual void deal_by(const rank_weights& /*weights*/) {}
  /// Begins a step among these ranks; null if the program named none. Throws configuration_error when the backend needs
  /// the ranks. `step` counts committed steps, so a repeated step has the same number. Random choices must depend on
  /// this number.
  virtual void begin(group* ranks, std::uint64_t step) = 0;
  /// Called when a pass other than the last pass of the step has written all gradients, for backends that sum passes in
  /// their own order.
  virtual void end_pass() {}
  /// Starts summing a bucket over the ranks, together with the two head numbers for the first bucket. Returns the
  /// number of its bytes that this rank put into collectives. Does not block.
  virtual std::size_t start(std::size_t bucket) = 0;
  /// Returns true if a started bucket is summed: `wait` is then not called for the bucket. Does not block. May always
  /// return false where polling is useless.
  [[nodiscard]] virtual bool test(std::size_t bucket) = 0;
  /// Waits until the bucket is summed. Returns the number of bytes that `wait` itself put into collectives.
  virtual std::size_t wait(std::size_t bucket) = 0;
  /// Ends a step: later operations of the model see the current gradients.
  virtual void finish() = 0;
  /// Abandons a failed or unfinished step. Returns when no operation accesses the gradients any more.
  virtual void abandon() noexcept = 0;
  /// Called when the last finished step has committed: its residuals and factors take effect for the next step.
  virtual void commit() noexcept {}
  /// Describes the state that persists between steps, as for a state_owner.
  virtual void describe(state_parts& /*parts*/) {}

  /// Sets and returns the two numbers that are summed together with the first bucket.
  virtual void put_head(const std::array<float, 2>& numbers) = 0;
  [[nodiscard]] virtual std::array<float, 2> head() = 0;
  /// Operates on some of the gradients: sets zeros, multiplies by `factor`, returns the sum of the squares.
  virtual void clear(const block& elements) = 0;
  virtual void scale(const block& elements, double factor) = 0;
  [[nodiscard]] virtual double sum_of_squares(const block& elements) = 0;
};

/// A factory for the backend of an arena, such as a class derived from `host_gradients`; the type of
/// `sync_options::codec`. An empty function: buckets are summed uncompressed.
using bucket_codec = std::function<std::unique_ptr<gradient_backend>(arena&)>;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
