// The parts of a simulated job: its possible faults, its processes, and its result.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <muster/elastic/membership/membership.hpp>
#include "../actions.hpp"

namespace simulation {

namespace elastic = muster::elastic;
using elastic::member_id;
using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// The possible events in a run, each a probability or a bound.
struct world {
  int members = 4;
  int hosts = 2;
  int min = 1;
  int monitors = 16;  ///< monitors per member; with fewer members all monitor all
  bool crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool store_trouble = true;
  bool joins = true;
  bool leaves = true;
  bool resets = false;  ///< connections of live members break, and there are no other faults
  double loss = 0.05;   ///< probability that a heartbeat is lost
  double duplicates = 0.05;
  int faults = 4;
  /// Highest number of further faults, each just after a generation was formed, at a member that holds its state.
  int echoes = 3;
};

/// A property does not hold. The text names the property and the time.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  /// Progress of a quorum that was restored alone. `excused`: earlier events have removed its members from it.
  enum class liveness { no_quorum, excused, progressed };
  std::uint64_t steps = 0;  ///< steps of the last generation when the run ended
  std::uint64_t generations = 0;
  bool lives = false;  ///< true if a group still makes progress
  int ended = 0;
  liveness healing = liveness::no_quorum;
  std::uint64_t turns = 0;  ///< highest number of turns of a member until that quorum had progressed
};

/// A process: the real protocol, and a session that computes with the others.
struct process {
  process(elastic::member self, const elastic::membership_policy& policy, time now)
      : id(self.id), host(self.host), protocol(std::move(self), policy, outlet, now) {}
  member_id id;
  std::uint64_t host;
  recorded_actions outlet;
  elastic::membership protocol;
  bool alive = true;
  bool ended = false;
  time paused_until{};
  std::vector<std::shared_ptr<std::function<void()>>> held;  // events that arrived during the pause
  std::uint64_t turns = 0;
  // State of the session.
  std::uint64_t generation = 0;  // generation of the group in which it works; 0: none
  elastic::generation_record group;
  std::set<member_id> hellos;
  bool has_state = false;
  bool must_stop = false;  // true if this generation has to stop
  bool waits = false;      // true while it waits for the parts of the others
  std::uint64_t step = 0;
  std::uint64_t state = 1;  // a digest over all steps that it has committed or copied
  std::uint64_t halt = 0;
  std::uint64_t attempt = 0;  // distinguishes groups, so that events planned for an earlier group have no effect
};
using crew = std::map<member_id, std::unique_ptr<process>>;

}  // namespace simulation
