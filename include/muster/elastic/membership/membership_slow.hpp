// Detects members and connections that delay the others.
#pragma once

#include <muster/elastic/membership/membership.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace elastic {
namespace detail {

// A slow connection has at most the tenth part of the median of the ranks' usual bandwidths. The usual bandwidth is
// measured on a rank's best connection, not on its slowest: of three ranks each has a connection to the rank at fault.
inline constexpr std::uint64_t slow_link_factor = 10;
// Microseconds of a step that a slow connection takes at least: ten times the noise on a busy machine, where the rates
// of equal connections with little traffic differ by a factor of ten.
inline constexpr std::uint64_t least_step_time = 20'000;

inline std::string megabytes(std::uint64_t rate) {
  return muster::detail::printed("%.3g MB/s", 1e-6 * static_cast<double>(rate));
}

}  // namespace detail

inline clock::duration least_work(std::span<const clock::duration> steps) noexcept {
  auto least = clock::duration::max();
  auto least_but_one = least;
  for (const auto step : steps) {
    least_but_one = std::min(least_but_one, std::max(step, least));
    least = std::min(least, step);
  }
  return steps.size() > 1 ? least_but_one : least;
}

// Returns true if enough members remain without one member. A waiting process replaces a member that leaves.
inline bool membership::can_spare_a_member(clock::time_point now) const {
  const auto spares =
      std::ranges::count_if(record_.waiting, [&](const member& peer) { return has_recent_heartbeat(now, peer.id); });
  const auto left = static_cast<std::ptrdiff_t>(record_.members.size()) - 1 + spares;
  return left >= std::max(policy_.min_members, 1);
}

// Returns true if this member has just exceeded the limit. It then sends a heartbeat at once, because the others wait
// for it.
inline bool membership::has_become_slow() const {
  return slow_above_ > 0 && !must_stop_ && static_cast<double>(own_.own_step_microseconds) > slow_above_ &&
         !slow_.contains(self_.id);
}

// Makes a slow member leave, as on its own request: no step is lost. Only rank 0 decides. If each member decided
// by the heartbeats that it has, several would leave together, for example both ends of a slow connection.
inline void membership::request_leave(clock::time_point now, const member& slow, const std::string& reason) {
  if (rank_ != 0 || own_.member_to_remove != 0 || another_leaves_ || !policy_.slow_members_leave ||
      !can_spare_a_member(now))
    return;
  slow_.emplace(slow.id, reason);
  own_.member_to_remove = slow.id;
  if (slow.id == self_.id) return leave(now);
  send_heartbeat(now);
}

inline void membership::find_slow_members(clock::time_point now) {
  if (policy_.slow_factor <= 0 || must_stop_ || own_.halt != 0) return;
  const auto work_of = [this](const member& peer) { return heartbeat_of(peer.id).own_step_microseconds; };
  std::vector<std::uint64_t> all;
  std::ranges::transform(record_.members, std::back_inserter(all), work_of);
  if (std::ranges::count(all, 0u) > 0) return;  // until all have done some steps
  constexpr double ignored_difference = 1000;   // microseconds; smaller differences do not matter
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::ranges::nth_element(all, middle);
  const double limit = slow_above_ = policy_.slow_factor * static_cast<double>(*middle) + ignored_difference;
  for (const auto& peer : record_.members) {
    if (static_cast<double>(work_of(peer)) <= limit) continue;
    const auto text = "slow: " + std::to_string(work_of(peer) / 1000) +
                      " ms of a step or more, the median of the ranks " + std::to_string(*middle / 1000) + " ms";
    if (slow_.emplace(peer.id, text).second) outlet_.note(name(peer.id) + " is " + text);
  }
  const auto& slowest = *std::ranges::max_element(record_.members, {}, work_of);
  if (static_cast<double>(work_of(slowest)) > limit) request_leave(now, slowest, slow_.at(slowest.id));
}

// Either end may cause a slow connection, and the faulty end also slows its incoming traffic, by late acknowledgements.
// The member with the most slow connections is taken as the cause, counted over former generations too: if the healthy
// end has left in vain, its successor's connection is slow as well. All reports arrive within two heartbeat intervals.
inline void membership::find_slow_links(clock::time_point now) {
  if (policy_.slow_factor <= 0 || must_stop_ || own_.halt != 0) return;
  std::vector<std::uint64_t> rates;
  for (const auto& peer : record_.members) {
    if (const auto& message = heartbeat_of(peer.id); is_in(message.slowest.peer)) rates.push_back(message.best_rate);
  }
  constexpr std::size_t least_ranks = 3;  // with two ranks the slow end is unknown
  if (rates.size() < least_ranks || rates.size() < record_.members.size()) return;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::ranges::nth_element(rates, middle);
  for (const auto& peer : record_.members) {
    const auto& message = heartbeat_of(peer.id);
    const bool is_slow = message.slowest.rate <= *middle / detail::slow_link_factor &&
                         message.slowest.step_microseconds >= detail::least_step_time;
    if (!is_slow || !reported_links_.insert(peer.id).second) continue;
    const auto text = "slow: " + detail::megabytes(message.slowest.rate) + " and " +
                      muster::detail::printed("%.3g ms", 1e-3 * static_cast<double>(message.slowest.latency)) +
                      " a round trip, the median of the ranks " + detail::megabytes(*middle);
    outlet_.note("the connection from " + name(peer.id) + " to " + name(message.slowest.peer) + " is " + text);
    slow_.emplace(peer.id, "its connection is " + text);
    ++slow_links_[peer.id];
    ++slow_links_[message.slowest.peer];
    slow_link_reported_ = now;
  }
  if (reported_links_.empty() || now - slow_link_reported_ <= 2 * policy_.heartbeat_interval) return;
  const auto at_fault = std::ranges::max_element(record_.members, {}, [this](const member& peer) {
    const auto ends = slow_links_.find(peer.id);
    return std::pair(ends == slow_links_.end() ? 0 : ends->second, reported_links_.contains(peer.id));
  });
  request_leave(now, *at_fault, connections_are_slow);
}

}}}  // namespace muster::v0::elastic
