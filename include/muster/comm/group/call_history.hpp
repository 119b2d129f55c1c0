// The last calls of a group at one rank. Ranks compare them, and write them to the flight record when a wait fails.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <string>

#include <muster/comm/transport.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// The last `length` calls of a group at one rank, with their times.
class call_history {
 public:
  static constexpr std::size_t length = 256;

  /// Records the next call.
  void record(const collective_signature& call) noexcept {
    calls_[count_ % length] = call;
    ++count_;
  }
  /// Returns the number of calls so far, which is the sequence number of the next call.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Returns a recorded call; null for a call that was overwritten or is not made yet.
  [[nodiscard]] const collective_signature* find(std::uint64_t sequence) const noexcept {
    const bool known = sequence < count_ && count_ - sequence <= length;
    return known ? &calls_[sequence % length] : nullptr;
  }

  // Records the start of a call, at the first check of its deadline. A call that is done at once is not timed: reading
  // the clock takes 1 % of the shortest call.
  void began(std::uint64_t sequence, clock::time_point now) noexcept {
    times_[sequence % length] = {sequence, now, {}};
  }
  // Records the end of a call whose start was recorded, when a wait for the call returns.
  void ended(std::uint64_t sequence, clock::time_point now) noexcept {
    if (auto& times = times_[sequence % length]; times.sequence == sequence) times.end = now;
  }

  /// Returns one line per call, oldest first: "call SEQUENCE BYTES BEGAN TOOK SIGNATURE". BEGAN is in seconds before
  /// `now`, TOOK in seconds. BEGAN is the first check of the deadline, and 0 for a call that has none: done at once, or
  /// not started. TOOK is 0 for a call whose end is not recorded.
  [[nodiscard]] std::string describe(clock::time_point now) const;

 private:
  struct span {
    std::uint64_t sequence = ~std::uint64_t{0};
    clock::time_point begin{};
    clock::time_point end{};
  };

  std::array<collective_signature, length> calls_{};
  std::array<span, length> times_{};
  std::uint64_t count_ = 0;
};

/// Folder of the flight records (`--flight-recorder`); empty for no records. Set before any rank is started, perhaps
/// before `main`: a context may be a global variable of the program.
inline std::string& flight_record_folder() {
  static std::string folder;
  return folder;
}
/// Number of SIGUSR2 signals that have requested a flight record.
inline constinit std::atomic<std::uint32_t> flight_records_requested{0};
/// Sets the folder. With a folder, SIGUSR2 requests a flight record, unless the program has a handler for the signal.
void set_flight_record_folder(const std::string& folder);

inline std::string call_history::describe(clock::time_point now) const {
  std::string text;
  for (auto sequence = count_ - std::min<std::uint64_t>(count_, length); sequence < count_; ++sequence) {
    const auto& call = calls_[sequence % length];
    const auto& times = times_[sequence % length];
    const bool is_timed = times.sequence == sequence;
    const bool has_ended = is_timed && times.end != clock::time_point{};
    text += printed("call %llu %llu %.6f %.6f ", static_cast<unsigned long long>(sequence),
                    static_cast<unsigned long long>(call.count) * size_of(call.type),
                    is_timed ? seconds(now - times.begin).count() : 0,
                    has_ended ? seconds(times.end - times.begin).count() : 0) +
            muster::describe(call) + "\n";
  }
  return text;
}

inline void set_flight_record_folder(const std::string& folder) {
  flight_record_folder() = folder;
  struct sigaction present {};
  if (folder.empty() || ::sigaction(SIGUSR2, nullptr, &present) != 0 || present.sa_handler != SIG_DFL) return;
  present.sa_handler = [](int) { flight_records_requested.fetch_add(1, std::memory_order_relaxed); };
  present.sa_flags = SA_RESTART;
  (void)::sigaction(SIGUSR2, &present, nullptr);
}

}}}  // namespace muster::v0::detail
