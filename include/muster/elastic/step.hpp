// A step of a training, as seen by the function that computes it.
#pragma once

#include <cstdint>

#include <muster/comm/group.hpp>
#include <muster/core/training_position.hpp>
#include <muster/data/batch_shard.hpp>

namespace muster { inline namespace v0 {

/// The number of a step, its ranks, and this rank's part of the batch. Valid until the function that received it
/// returns. A repeated attempt after a failure receives a new step, perhaps with other ranks.
class step {
 public:
  /// Created by a session for each attempt; `ranks` must outlive it.
  step(muster::group& ranks, std::uint64_t generation, std::uint64_t number, const training_position& position) noexcept
      : ranks_(&ranks), generation_(generation), number_(number), at_(position) {}
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// Returns the ranks that compute this step together.
  [[nodiscard]] muster::group& group() const noexcept { return *ranks_; }
  /// Returns this rank's part of the batch, the argument of the loader's `next`.
  [[nodiscard]] muster::batch_shard shard() const noexcept { return {ranks_->rank(), ranks_->size()}; }
  /// Returns the number of steps that were committed before this step.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// Returns the epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return static_cast<std::uint64_t>(at_.epoch); }
  /// Returns the number of the group, in the order in which groups were formed; 0 in a session of fixed
  /// ranks.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// Returns the progress of the training, so that `schedule(step)` is the learning rate.
  operator training_position() const noexcept { return at_; }  // NOLINT: converts on purpose

 private:
  muster::group* ranks_;
  std::uint64_t generation_;
  std::uint64_t number_;
  training_position at_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
