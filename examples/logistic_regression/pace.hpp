// Steps that take so long at least, as those of a larger model would: for experiments with workers of unequal speed.
#pragma once

#include <thread>

#include <muster/core/clock.hpp>

#include "options.hpp"

namespace logistic {

/// The time of one step's arithmetic at one rank.
class pace {
 public:
  explicit pace(const options& chosen) : chosen_(chosen) {}

  void begin() noexcept { begun_ = muster::clock::now(); }
  /// Sleeps until the step has taken `--step-time`, at the rank of `--slow` so many times that.
  void hold(int rank) const {
    if (chosen_.step_time == 0) return;
    const double factor = rank == chosen_.slow_rank ? chosen_.slow_factor : 1.0;
    std::this_thread::sleep_until(
        begun_ + std::chrono::duration_cast<muster::clock::duration>(muster::seconds(chosen_.step_time * factor)));
  }

 private:
  const options& chosen_;
  muster::clock::time_point begun_{};
};

}  // namespace logistic
