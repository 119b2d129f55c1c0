// Training that goes on when ranks die, hang or join.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/session.hpp>

namespace muster { inline namespace v0 { namespace elastic {

/// What is different from one generation to the next, and what the change took, on this rank.
struct change {
  std::uint64_t generation = 0;
  std::string why;       ///< "rank 2 died: proof, 1 joined", in the ranks of before
  int rank_before = -1;  ///< -1: this process joined
  int size_before = 0;
  int rank = 0;
  int size = 1;
  std::vector<int> origin;  ///< by rank: its rank before; -1 for one that joined
  std::uint64_t step = 0;   ///< with which training goes on
  bool copied = false;      ///< this rank got its state from the others
  std::uint64_t again = 0;  ///< steps that this rank runs again: 0 or 1
  double detect = 0;        ///< seconds from the first sign to the end of the step that was under way
  double agree = 0;         ///< from there to the new record
  double connect = 0;       ///< to the connections of the new group
  double state = 0;         ///< to the same state at every member
};

/// How a session of ranks that come and go behaves.
struct session_options {
  /// Called by the rank's thread before a generation is given up, while its group cannot be used any more.
  std::function<void()> before_rebuild{};
  /// Called by every rank of a new generation when all have the same state and before the first step: child groups are
  /// made here. What it throws ends the run, but for failures of ranks.
  std::function<void(muster::group& ranks, const change& what)> on_rebuild{};
  /// SIGTERM leaves at the next boundary between steps, SIGUSR1 prints the membership. The handlers of before are put
  /// back at the session's end.
  bool handle_signals = true;
};

/// A session of ranks that may die, hang, leave and join, for a context with `elastic()`: `--elastic on`, which
/// muster-launch sets. Members are found through the job's store (`--rendezvous`); `--min-ranks`, `--max-ranks`,
/// `--quorum-timeout`, `--heartbeat` and `--missed-heartbeats` say what the job allows.
///
/// A step that fails because of other ranks is run again in a new group of those that are left, from the furthest step
/// that any of them has committed: at most one step is run twice, none is lost. A process that joins gets the
/// replicated state of the others between two steps. `run` throws `departure` when this process' part is over. The
/// destructor leaves: when all members are at their end it returns at once.
///
/// One a process at a time; part of muster::tcp. Throws configuration_error when the context is not elastic.
[[nodiscard]] muster::session session(context& of, session_options options = {});

}}}  // namespace muster::v0::elastic
