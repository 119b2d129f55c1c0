// The shares of ranks in each batch according to their speeds.
#pragma once

#include <cstdint>
#include <vector>

#include <muster/core/clock.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/elastic/step.hpp>

#include "../elastic/waiting_time.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// Returns weights proportional to these speeds, in ten-thousandths and never 0. A speed of 0 is unknown and counts as
/// the mean of the known speeds. Returns null where no speed is known.
[[nodiscard]] rank_weights weights_by(const std::vector<double>& speeds);
/// Returns true if a step with the weights `current` takes more than a fiftieth longer than with `ideal`, the weights
/// by speed. Null means equal parts.
[[nodiscard]] bool differ(const rank_weights& current, const rank_weights& ideal);

/// Returns true if ranks exchange their speeds after this number of steps since the group formed.
[[nodiscard]] constexpr bool exchanges_speeds_after(std::uint64_t steps) noexcept {
  return steps % 10 == 0 || steps == 2 || steps == 5;  // equal parts only until a first measurement
}

/// An estimate of a rank's speed in samples per second, from the durations of its steps.
class speed_estimate {
 public:
  /// Adds a step's samples and duration. A step without samples is ignored.
  void note(std::uint64_t samples, double seconds) noexcept;
  /// Returns the rate; 0 before the first step with samples. Called every few steps. When no step since the last call
  /// had samples the rate grows with each call, so that the rank gets samples again.
  [[nodiscard]] double rate() noexcept;

 private:
  struct sums {
    double samples = 0;
    double seconds = 0;
    [[nodiscard]] double rate() const noexcept { return seconds > 0 ? samples / seconds : 0.0; }
  };
  sums window_;   // the latest steps
  sums history_;  // the steps before, weighted less the older they are
  bool idle_ = true;
};

/// A balance of the ranks' shares: measures this rank's speed and agrees on weights with the other ranks. Use it on the
/// thread that is the rank.
class speed_balance {
 public:
  /// Exchanges the ranks' speeds. Collective, before a step.
  void exchange_speeds(step& current);
  /// Calls `f`, which returns how many samples this rank has processed, and measures the duration.
  template <class F>
  void measure(F&& f) {
    const waiting_time waited;
    const auto began = clock::now();
    const std::uint64_t samples = f();
    own_.note(samples, seconds(clock::now() - began - waited.sum()).count());
  }
  /// Returns the weights for the ranks of that generation; null where these ranks have not exchanged speeds.
  [[nodiscard]] rank_weights weights(std::uint64_t generation) const noexcept {
    return generation == generation_ ? weights_ : nullptr;
  }

 private:
  std::uint64_t generation_ = ~std::uint64_t{0};
  std::uint64_t first_ = 0;  // the group's first step
  rank_weights weights_;
  speed_estimate own_;
};

}}}  // namespace muster::v0::detail
