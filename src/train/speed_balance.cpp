#include "speed_balance.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <muster/comm/collectives/allgather.hpp>

namespace muster { inline namespace v0 { namespace detail {
namespace {

// A window is several periods of a cgroup's quota (0.1 s), in which a rank runs and stands still; of its own time.
constexpr double window_seconds = 0.5;
// So much is left of a measurement when the next window counts. A window that is so many times faster or slower than
// what is known is no noise: the rank has got another speed, and what was before tells nothing of it.
constexpr double left_of_older = 0.75;
constexpr double other_speed = 1.5;

}  // namespace

rank_weights weights_by(const std::vector<double>& speeds) {
  const auto known = std::ranges::count_if(speeds, [](double speed) { return speed > 0; });
  if (known == 0) return nullptr;
  const double mean = std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(known);
  std::vector<std::uint32_t> made;
  for (const double speed : speeds) {
    const double share = (speed > 0 ? speed : mean) / (mean * static_cast<double>(speeds.size()));
    made.push_back(static_cast<std::uint32_t>(std::max(1.0, std::round(1e4 * share))));
  }
  return std::make_shared<const std::vector<std::uint32_t>>(std::move(made));
}

bool differ(const rank_weights& one, const rank_weights& other) {
  if (!other || (one && one->size() != other->size())) return one != other;
  const auto share = [](const rank_weights& of, std::size_t rank) {
    return (*of)[rank] / std::accumulate(of->begin(), of->end(), 0.0);
  };
  const auto ranks = other->size();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double now = one ? share(one, rank) : 1.0 / static_cast<double>(ranks);
    if (now > 1.02 * share(other, rank)) return true;
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
    known_.samples *= 1.25;
    window_.samples *= 1.25;
  }
  const sums all{known_.samples + window_.samples, known_.seconds + window_.seconds};
  if (window_.seconds < window_seconds) return all.rate();
  const double change = known_.seconds > 0 ? window_.rate() / known_.rate() : 1.0;
  if (change > other_speed || change * other_speed < 1)
    known_ = window_;
  else
    known_ = {left_of_older * known_.samples + window_.samples, left_of_older * known_.seconds + window_.seconds};
  window_ = {};
  return known_.rate();
}

void speed_balance::meet(step& with) {
  const bool is_new = with.generation() != generation_;
  if (is_new) first_ = with.number();
  if (!meet_after(with.number() - first_)) return;
  const double own = own_.rate();
  std::vector<double> all(static_cast<std::size_t>(with.group().size()));
  allgather(with.group(), std::span(&own, 1), all);
  auto next = weights_by(all);
  if (is_new || differ(weights_, next)) weights_ = std::move(next);
  generation_ = with.generation();
}

}}}  // namespace muster::v0::detail
