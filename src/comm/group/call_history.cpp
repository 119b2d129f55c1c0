#include "call_history.hpp"

#include <algorithm>
#include <csignal>

#include "../../core/text.hpp"

namespace muster { inline namespace v0 { namespace detail {

std::string call_history::describe(clock::time_point now) const {
  std::string text;
  for (auto sequence = count_ - std::min<std::uint64_t>(count_, length); sequence < count_; ++sequence) {
    const auto& call = calls_[sequence % length];
    const auto& times = times_[sequence % length];
    const bool is_timed = times.sequence == sequence;
    const bool has_ended = is_timed && times.end != clock::time_point{};
    text += printed("call %llu %llu %.6f %.6f ", static_cast<unsigned long long>(sequence),
                    static_cast<unsigned long long>(call.count * size_of(call.type)),
                    is_timed ? seconds(now - times.begin).count() : 0,
                    has_ended ? seconds(times.end - times.begin).count() : 0) +
            muster::describe(call) + "\n";
  }
  return text;
}

void set_flight_record_folder(const std::string& folder) {
  flight_record_folder() = folder;
  struct sigaction present {};
  if (folder.empty() || ::sigaction(SIGUSR2, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
  present.sa_handler = [](int) { flight_records_requested.fetch_add(1, std::memory_order_relaxed); };
  present.sa_flags = SA_RESTART;
  (void)::sigaction(SIGUSR2, &present, nullptr);
}

}}}  // namespace muster::v0::detail
