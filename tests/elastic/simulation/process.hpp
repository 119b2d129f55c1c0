// What a simulated job is made of: what may happen to it, its processes, and how it ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../actions.hpp"
#include "elastic/membership/membership.hpp"

namespace simulation {

namespace elastic = muster::elastic;
using elastic::member_id;
using time = muster::clock::time_point;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// What may happen in a run, each a probability or a bound.
struct world {
  int members = 4;
  int hosts = 2;
  int min = 1;
  int monitors = 16;  ///< of each: with fewer members all watch all
  bool crashes = true;
  bool pauses = true;
  bool partitions = true;
  bool store_trouble = true;
  bool joins = true;
  bool leaves = true;
  bool resets = false;  ///< connections of members that live break, and there are no other faults
  double loss = 0.05;   ///< of heartbeats
  double duplicates = 0.05;
  int faults = 4;
  int echoes = 3;  ///< at most so many more, each just after a generation was formed, at one that holds its state
};

/// A property does not hold; the text says which and when.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

struct outcome {
  /// Of a quorum that alone was made whole. `excused`: what had begun before that took its members from it.
  enum class liveness { no_quorum, excused, progressed };
  std::uint64_t steps = 0;  ///< of the last generation when the run ended
  std::uint64_t generations = 0;
  bool lives = false;  ///< whether a group still makes progress
  int ended = 0;
  liveness healing = liveness::no_quorum;
  std::uint64_t turns = 0;  ///< of a member, most of all, until that quorum had progressed
};

/// One member: the protocol as it is, and a session that computes with the others.
struct process {
  process(elastic::member self, const elastic::membership_policy& policy, time now)
      : id(self.id), host(self.host), protocol(std::move(self), policy, wanted, now) {}
  member_id id;
  std::uint64_t host;
  recorded_actions wanted;
  elastic::membership protocol;
  bool alive = true;
  bool ended = false;
  time paused_until{};
  std::vector<std::shared_ptr<std::function<void()>>> held;  // what came meanwhile
  std::uint64_t turns = 0;
  // Its session: what it computes with the others.
  std::uint64_t generation = 0;  // of the group it works in; 0: none
  elastic::generation_record group;
  std::set<member_id> hellos;
  bool has_state = false;
  bool told = false;   // to stop, of this generation
  bool waits = false;  // for the parts of the others
  std::uint64_t step = 0;
  std::uint64_t state = 1;  // a digest of all it has learned
  std::uint64_t halt = 0;
  std::uint64_t attempt = 0;  // so that what was planned for an earlier group does nothing
};
using crew = std::map<member_id, std::unique_ptr<process>>;

}  // namespace simulation
