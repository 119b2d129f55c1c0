// Members and connections that hold up the others.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "../../core/text.hpp"
#include "membership.hpp"

namespace muster { inline namespace v0 { namespace elastic {
namespace {

// A slow connection has so small a part of the bandwidth that the ranks' best ones have at any time, in the median.
// Not that of their slowest: of three ranks each has a connection to the one at fault.
constexpr std::uint64_t slow_link_factor = 10;
// Microseconds of a step that a slow one takes at least, ten times what is anything on a busy machine: there the rates
// of connections that are alike, and have little to do, are ten times apart.
constexpr std::uint64_t least_of_a_step = 20'000;

std::string megabytes(std::uint64_t rate) { return detail::printed("%.3g MB/s", 1e-6 * static_cast<double>(rate)); }

}  // namespace

clock::duration least_work(std::span<const clock::duration> steps) noexcept {
  auto least = clock::duration::max();
  auto least_but_one = least;
  for (const auto one : steps) {
    least_but_one = std::min(least_but_one, std::max(one, least));
    least = std::min(least, one);
  }
  return steps.size() > 1 ? least_but_one : least;
}

// A process that waits for room takes the place of one that leaves.
bool membership::can_be_spared(clock::time_point now) const {
  const auto spares = std::ranges::count_if(record_.waiting, [&](const member& one) { return is_heard(now, one.id); });
  const auto left = static_cast<std::ptrdiff_t>(record_.members.size()) - 1 + spares;
  return left >= std::max(policy_.min, 1);
}

// What the others of a slow member wait for is named at once, and not with the next heartbeat.
bool membership::has_become_slow() const {
  return slow_above_ > 0 && !must_stop_ && static_cast<double>(own_.work) > slow_above_ && !slow_.contains(self_.id);
}

// It leaves as one that wants to, and no step is lost by it. Rank 0 decides: members that each judge by the heartbeats
// that they have would leave together, as both ends of a slow connection did.
void membership::let_leave(clock::time_point now, const member& slow, const std::string& why) {
  if (rank_ != 0 || own_.removes != 0 || wish_ || !policy_.slow_ones_leave || !can_be_spared(now)) return;
  slow_.emplace(slow.id, why);
  own_.removes = slow.id;
  if (slow.id == self_.id) return leave(now);
  say(now);
}

void membership::find_slow_members(clock::time_point now) {
  if (policy_.slow_factor <= 0 || must_stop_ || own_.halt != 0) return;
  const auto work_of = [this](const member& one) { return heartbeat_of(one.id).work; };
  std::vector<std::uint64_t> all;
  std::ranges::transform(record_.members, std::back_inserter(all), work_of);
  if (std::ranges::count(all, 0u) > 0) return;  // until all have done some steps
  constexpr double of_no_matter = 1000;         // microseconds
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() - 1) / 2);
  std::ranges::nth_element(all, middle);
  const double limit = slow_above_ = policy_.slow_factor * static_cast<double>(*middle) + of_no_matter;
  for (const auto& one : record_.members) {
    if (static_cast<double>(work_of(one)) <= limit) continue;
    const auto text = "slow: " + std::to_string(work_of(one) / 1000) +
                      " ms of a step or more, the median of the ranks " + std::to_string(*middle / 1000) + " ms";
    if (slow_.emplace(one.id, text).second) out_.note(name(one.id) + " is " + text);
  }
  const auto& slowest = *std::ranges::max_element(record_.members, {}, work_of);
  if (static_cast<double>(work_of(slowest)) > limit) let_leave(now, slowest, slow_.at(slowest.id));
}

// Either end may be the reason, and it slows down what comes to it as well, by late acknowledgements. It is taken for
// the one at which most of them end, also in the generations before: when the other end has left in vain, its
// successor's is slow too. What the others say comes within two beats.
void membership::find_slow_links(clock::time_point now) {
  if (policy_.slow_factor <= 0 || must_stop_ || own_.halt != 0) return;
  std::vector<std::uint64_t> rates;
  for (const auto& one : record_.members) {
    if (const auto& said = heartbeat_of(one.id); is_in(said.slowest.to)) rates.push_back(said.usual);
  }
  constexpr std::size_t fellows = 3;  // of two it is not known which is slow
  if (rates.size() < fellows || rates.size() < record_.members.size()) return;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::ranges::nth_element(rates, middle);
  for (const auto& one : record_.members) {
    const auto& said = heartbeat_of(one.id);
    const bool is_slow = said.slowest.rate <= *middle / slow_link_factor && said.slowest.takes >= least_of_a_step;
    if (!is_slow || !told_of_.insert(one.id).second) continue;
    const auto text = "slow: " + megabytes(said.slowest.rate) + " and " +
                      detail::printed("%.3g ms", 1e-3 * static_cast<double>(said.slowest.latency)) +
                      " a round trip, the median of the ranks " + megabytes(*middle);
    out_.note("the connection from " + name(one.id) + " to " + name(said.slowest.to) + " is " + text);
    slow_.emplace(one.id, "its connection is " + text);
    ++slow_links_[one.id];
    ++slow_links_[said.slowest.to];
    slow_said_ = now;
  }
  if (told_of_.empty() || now - slow_said_ <= 2 * policy_.beat) return;
  const auto at_fault = std::ranges::max_element(record_.members, {}, [this](const member& one) {
    const auto ends = slow_links_.find(one.id);
    return std::pair(ends == slow_links_.end() ? 0 : ends->second, told_of_.contains(one.id));
  });
  let_leave(now, *at_fault, connections_are_slow);
}

}}}  // namespace muster::v0::elastic
