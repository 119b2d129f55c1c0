// How much of each batch every rank gets, by its speed.
#pragma once

#include <cstdint>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/elastic/step.hpp>

#include "../elastic/waiting_time.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// The weights by these speeds, of which 0 is not known and counts as their mean: in ten-thousandths, none of them 0.
/// Null where none is known.
[[nodiscard]] rank_weights weights_by(const std::vector<double>& speeds);
/// Whether a step with the first takes a fiftieth longer than with the second, which are by speed; null is equal parts.
[[nodiscard]] bool differ(const rank_weights& one, const rank_weights& other);

/// Whether ranks tell one another their speeds so many steps after the group formed.
[[nodiscard]] constexpr bool meet_after(std::uint64_t steps) noexcept {
  return steps % 10 == 0 || steps == 2 || steps == 5;  // equal parts no longer than it takes to measure
}

/// Samples a second of one rank, from what its steps took.
class speed_estimate {
 public:
  void note(std::uint64_t samples, double seconds) noexcept;
  /// 0 where nothing was noted yet. Called every few steps; when none of them had samples it grows each time, so that
  /// the rank gets some again.
  [[nodiscard]] double rate() noexcept;

 private:
  struct sums {
    double samples = 0;
    double seconds = 0;
    [[nodiscard]] double rate() const noexcept { return seconds > 0 ? samples / seconds : 0.0; }
  };
  sums window_;  // the last steps
  sums known_;   // what was before, older steps less
  bool idle_ = true;
};

/// Measures this rank and agrees with the others. Used by the thread that is the rank.
class speed_balance {
 public:
  /// Collective, before a step.
  void meet(step& with);
  /// Calls `f`, which returns how many samples of this rank it has worked on.
  template <class F>
  void measure(F&& f) {
    const waiting_time waited;
    const auto began = clock::now();
    const std::uint64_t samples = f();
    own_.note(samples, seconds(clock::now() - began - waited.sum()).count());
  }
  /// Of the ranks of that generation; null where these have not met.
  [[nodiscard]] rank_weights weights(std::uint64_t generation) const noexcept {
    return generation == generation_ ? weights_ : nullptr;
  }

 private:
  std::uint64_t generation_ = ~std::uint64_t{0};
  std::uint64_t first_ = 0;  // its first step
  rank_weights weights_;
  speed_estimate own_;
};

}}}  // namespace muster::v0::detail
