// How long things take, and are given, in elastic, beside what the settings say (`membership_policy`).
#pragma once

#include <chrono>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 { namespace detail {

struct elastic_timing {
  /// A member that is done waits so long for the others to be done too, and looks this often whether they are.
  static constexpr seconds farewell{2.0};
  static constexpr std::chrono::milliseconds farewell_poll{2};
  /// Killed processes of this host have so long to end before memory that they write is used again.
  static constexpr seconds end_of_killed{2.0};
  static constexpr std::chrono::microseconds end_poll{200};
  /// Between two looks whether this rank's state is still that of its last stop, while no generation forms.
  static constexpr std::chrono::seconds next_generation{1};
  /// Between two looks of a thread that connects generations whether it is to end.
  static constexpr std::chrono::milliseconds look_at_links{50};
  /// Connections stay so long when others are there: members change over one after another.
  static constexpr std::chrono::seconds former_links{2};
};

}}}  // namespace muster::v0::detail
