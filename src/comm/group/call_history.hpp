// The last calls of a group at one rank: for ranks to compare, and to be written down when they wait in vain.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include <muster/comm/transport.hpp>

namespace muster { inline namespace v0 { namespace detail {

class call_history {
 public:
  static constexpr std::size_t length = 256;

  /// The next call is this one.
  void note(const collective_signature& call) noexcept {
    calls_[count_ % length] = call;
    ++count_;
  }
  /// The calls so far: the sequence number of the next one.
  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Null for a call that is forgotten, or was not made yet.
  [[nodiscard]] const collective_signature* find(std::uint64_t sequence) const noexcept {
    const bool known = sequence < count_ && count_ - sequence <= length;
    return known ? &calls_[sequence % length] : nullptr;
  }

  // A call that is done at once takes no look at the clock: a hundredth of the shortest one is a nanosecond.
  void began(std::uint64_t sequence, clock::time_point now) noexcept {
    times_[sequence % length] = {sequence, now, {}};
  }
  void ended(std::uint64_t sequence, clock::time_point now) noexcept {
    if (auto& its = times_[sequence % length]; its.sequence == sequence) its.end = now;
  }

  /// A line a call, the oldest first: "call SEQUENCE BYTES BEGAN TOOK SIGNATURE", in seconds before `now` and of it; 0
  /// where it was done at once, and TOOK where it is not done.
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

/// Where ranks write down their calls, as `--flight-recorder` says it: empty for nowhere. Set before there are ranks,
/// perhaps before main: a context may be a variable of the program's.
inline std::string& flight_record_folder() {
  static std::string folder;
  return folder;
}
/// How often SIGUSR2 has asked for that.
inline constinit std::atomic<std::uint32_t> flight_records_asked_for{0};
/// Sets the folder. Where there is one SIGUSR2 asks for records, unless the program has a handler of its own.
void set_flight_record_folder(const std::string& folder);

}}}  // namespace muster::v0::detail
