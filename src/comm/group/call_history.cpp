#include "call_history.hpp"

#include <algorithm>
#include <cstdio>

namespace muster::inline v0::detail {

std::string call_history::describe(std::uint64_t done, clock::time_point now) const {
  std::string text;
  for (auto at = count_ - std::min<std::uint64_t>(count_, length); at < count_; ++at) {
    const auto& call = calls_[at % length];
    const auto& its = times_[at % length];
    const bool is_timed = its.sequence == at;
    const bool has_ended = is_timed && its.end != clock::time_point{};
    const double began = is_timed ? seconds(now - its.begin).count() : 0;
    const double took = has_ended ? seconds(its.end - its.begin).count() : at < done ? 0 : began;
    char times[64];
    std::snprintf(times, sizeof times, "%.6f %.6f ", began, took);
    text += "call " + std::to_string(at) + " " + std::to_string(call.count * size_of(call.type)) + " " +
            (at < done    ? "done "
             : at == done ? "waiting "
                          : "queued ") +
            times + muster::describe(call) + "\n";
  }
  return text;
}

}  // namespace muster::inline v0::detail
