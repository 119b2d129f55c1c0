#include "speed_balance.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <muster/comm/collectives/allgather.hpp>

namespace muster::inline v0::detail {
namespace {

// Ranks meet every so many steps, and what they have measured before so long, of their own time, counts half: several
// periods of a cgroup's quota (0.1 s).
constexpr std::uint64_t steps_between = 10;
constexpr double memory_seconds = 1.0;

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
  if (!one || !other || one->size() != other->size()) return one != other;
  for (std::size_t rank = 0; rank < one->size(); ++rank) {
    const double before = (*one)[rank];
    if (std::abs(before - (*other)[rank]) > before / 20) return true;
  }
  return false;
}

void speed_balance::meet(step& with) {
  if (with.generation() == generation_ && with.number() % steps_between != 0) return;
  // Without samples nothing is measured: it is given more each time, until it has some.
  if (idle_) samples_ *= 1.25;
  idle_ = true;
  const double own = seconds_ > 0 ? samples_ / seconds_ : 0.0;
  std::vector<double> all(static_cast<std::size_t>(with.group().size()));
  allgather(with.group(), std::span(&own, 1), all);
  auto next = weights_by(all);
  if (with.generation() != generation_ || differ(weights_, next)) weights_ = std::move(next);
  generation_ = with.generation();
  if (seconds_ < memory_seconds) return;
  samples_ /= 2;
  seconds_ /= 2;
}

void speed_balance::note(std::uint64_t samples, seconds own) noexcept {
  if (samples == 0 || own.count() <= 0) return;
  idle_ = false;
  samples_ += static_cast<double>(samples);
  seconds_ += own.count();
}

}  // namespace muster::inline v0::detail
