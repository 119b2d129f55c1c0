// Durations and intervals of elastic jobs, in addition to the settings (`membership_policy`).
#pragma once

#include <chrono>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

struct elastic_timing {
  /// A member that is finished waits at most `farewell` for the others to finish, and checks for that every
  /// `farewell_poll`.
  static constexpr seconds farewell{2.0};
  static constexpr std::chrono::milliseconds farewell_poll{2};
  /// Killed processes on the local host have `end_of_killed` to end before the memory that they write is used again.
  /// They are checked every `end_poll`.
  static constexpr seconds end_of_killed{2.0};
  static constexpr std::chrono::microseconds end_poll{200};
  /// Time limit of one wait for the next generation. A rank whose wait ends without a generation waits again.
  static constexpr std::chrono::seconds next_generation{1};
  /// Interval at which a thread that connects generations checks for a request to end.
  static constexpr std::chrono::milliseconds look_at_links{50};
  /// Time for which old connections stay after new ones exist: members change over one after another.
  static constexpr std::chrono::seconds former_links{2};
};

}}}  // namespace muster::v0::detail
