// One step of a training, as the function that does it sees it.
#pragma once

#include <cstdint>

#include <muster/comm/group.hpp>
#include <muster/core/training_position.hpp>
#include <muster/data/batch_shard.hpp>

namespace muster { inline namespace v0 {

/// The number of a step, its ranks, and this rank's part of the batch. Valid while the function runs that got it; an
/// attempt after a failure gets another, perhaps with other ranks.
class step {
 public:
  /// Made by a session for each attempt; `ranks` outlives it.
  step(muster::group& ranks, std::uint64_t generation, std::uint64_t number, const training_position& at) noexcept
      : ranks_(&ranks), generation_(generation), number_(number), at_(at) {}
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// The ranks that do this step together.
  [[nodiscard]] muster::group& group() const noexcept { return *ranks_; }
  /// This rank's part of the batch: what the loader's next() is given.
  [[nodiscard]] muster::batch_shard shard() const noexcept { return {ranks_->rank(), ranks_->size()}; }
  /// Steps that were committed before this one.
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  /// The epoch, from 0.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return static_cast<std::uint64_t>(at_.epoch); }
  /// Which group of ranks this is, in the order in which they were formed; 0 in a session of fixed ranks.
  [[nodiscard]] std::uint64_t generation() const noexcept { return generation_; }

  /// How far the training is, so that `schedule(step)` is the learning rate.
  operator training_position() const noexcept { return at_; }  // NOLINT: converts on purpose

 private:
  muster::group* ranks_;
  std::uint64_t generation_;
  std::uint64_t number_;
  training_position at_;
};

}}  // namespace muster::v0
