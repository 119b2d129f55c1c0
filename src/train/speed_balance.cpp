#include "speed_balance.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <muster/comm/collectives/allgather.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

// Length of a window of the rank's own time. A window contains several periods of a cgroup's quota (0.1 s), within
// which a rank runs and is throttled.
constexpr double window_seconds = 0.5;
// Weight of the older measurements when the next window is added. A window that is faster or slower than the history by
// a factor of `changed_speed` is not noise: the rank's speed has changed, and the older measurements are dropped.
constexpr double weight_of_history = 0.75;
constexpr double changed_speed = 1.5;

}  // namespace

rank_weights weights_by(const std::vector<double>& speeds) {
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

bool differ(const rank_weights& current, const rank_weights& ideal) {
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

void speed_estimate::note(std::uint64_t samples, double seconds) noexcept {
  if (samples == 0 || seconds <= 0) return;
  idle_ = false;
  window_.samples += static_cast<double>(samples);
  window_.seconds += seconds;
}

double speed_estimate::rate() noexcept {
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

void speed_balance::exchange_speeds(step& current) {
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
