// The shares of ranks in each batch according to their speeds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/core/clock.hpp>
#include <muster/data/batch_shard.hpp>
#include <muster/elastic/step.hpp>
#include <muster/elastic/waiting_time.hpp>

#include <muster/core/detail/exact_begin.hpp>

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
  /// Exchanges the ranks' speeds and updates the weights, in the steps that `exchanges_speeds_after` selects.
  /// Collective: call it before every step.
  void exchange_speeds_if_due(step& current);
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

// Length of a window of the rank's own time. A window contains several periods of a cgroup's quota (0.1 s), within
// which a rank runs and is throttled.
inline constexpr double window_seconds = 0.5;
// Weight of the older measurements when the next window is added. A window that is faster or slower than the history by
// a factor of `changed_speed` is not noise: the rank's speed has changed, and the older measurements are dropped.
inline constexpr double weight_of_history = 0.75;
inline constexpr double changed_speed = 1.5;

inline rank_weights weights_by(const std::vector<double>& speeds) {
  const auto known = std::ranges::count_if(speeds, [](double speed) { return speed > 0; });
  if (known == 0) return nullptr;
  const double mean = std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(known);
  std::vector<std::uint32_t> weights;
  for (const double speed : speeds) {
    const double share = (speed > 0 ? speed : mean) / (mean * static_cast<double>(speeds.size()));
    weights.push_back(static_cast<std::uint32_t>(std::max(1.0, std::round(1e4 * share))));
  }
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(weights));
}

inline bool differ(const rank_weights& current, const rank_weights& ideal) {
  if (!ideal || (current && current->size() != ideal->size())) return current != ideal;
  const auto share = [](const rank_weights& weights, std::size_t rank) {
    return (*weights)[rank] / std::accumulate(weights->begin(), weights->end(), 0.0);
  };
  const auto ranks = ideal->size();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double share_now = current ? share(current, rank) : 1.0 / static_cast<double>(ranks);
    if (share_now > 1.02 * share(ideal, rank)) return true;
  }
  return false;
}

inline void speed_estimate::note(std::uint64_t samples, double seconds) noexcept {
  if (samples == 0 || seconds <= 0) return;
  idle_ = false;
  window_.samples += static_cast<double>(samples);
  window_.seconds += seconds;
}

inline double speed_estimate::rate() noexcept {
  if (std::exchange(idle_, true)) {
    history_.samples *= 1.25;
    window_.samples *= 1.25;
  }
  const sums all{history_.samples + window_.samples, history_.seconds + window_.seconds};
  if (window_.seconds < window_seconds) return all.rate();
  const double change = history_.seconds > 0 ? window_.rate() / history_.rate() : 1.0;
  if (change > changed_speed || change * changed_speed < 1)
    history_ = window_;
  else
    history_ = {weight_of_history * history_.samples + window_.samples,
                weight_of_history * history_.seconds + window_.seconds};
  window_ = {};
  return history_.rate();
}

inline void speed_balance::exchange_speeds_if_due(step& current) {
  const bool is_new = current.generation() != generation_;
  if (is_new) first_ = current.number();
  if (!exchanges_speeds_after(current.number() - first_)) return;
  const double own = own_.rate();
  std::vector<double> all(static_cast<std::size_t>(current.group().size()));
  allgather(current.group(), std::span(&own, 1), all);
  auto next = weights_by(all);
  if (is_new || differ(weights_, next)) weights_ = std::move(next);
  generation_ = current.generation();
}

}}}  // namespace muster::v0::detail

#include <muster/core/detail/exact_end.hpp>
