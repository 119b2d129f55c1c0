// Training that continues when ranks die, hang or join.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/elastic/session.hpp>

namespace muster { inline namespace v0 { namespace elastic {

/// The difference between two generations, and the duration of the change, on this rank.
struct change {
  std::uint64_t generation = 0;
  std::string reason;    ///< "rank 2 died: proof, 1 joined", by the ranks of the previous generation
  int rank_before = -1;  ///< the previous rank; -1: this process joined
  int size_before = 0;
  int rank = 0;
  int size = 1;
  std::vector<int> origin;  ///< by rank: its previous rank; -1 for a rank that joined
  std::uint64_t step = 0;   ///< number of committed steps from which training continues
  bool copied = false;      ///< true: this rank copied its state from the others
  std::uint64_t again = 0;  ///< number of steps that this rank runs again: 0 or 1
  double detect = 0;        ///< seconds from the first sign of the change to the end of the step that was under way
  double agree = 0;         ///< seconds from the end of that step to the new record
  double connect = 0;       ///< seconds from the record to the connections of the new group
  double state = 0;         ///< seconds from the connections to the same state at every member
};

/// The options of a session whose ranks may leave and join.
struct session_options {
  /// Called by the rank's thread before the session abandons a generation, when its group is no longer usable.
  std::function<void()> before_rebuild{};
  /// Called by every rank of a new generation when all ranks have the same state, before the first step: create child
  /// groups here. Its exceptions end the run, except failures of ranks.
  std::function<void(muster::group& ranks, const change& difference)> on_rebuild{};
  /// True: after SIGTERM this process leaves at the next boundary between steps, and SIGUSR1 prints the membership. The
  /// session restores the previous handlers at its end.
  bool handle_signals = true;
};

/// Returns a session of ranks that may die, hang, leave and join, for a context with `elastic()`: `--elastic on`, which
/// muster-launch sets. Members find each other through the job's store (`--rendezvous`). `--min-ranks`, `--max-ranks`,
/// `--quorum-timeout`, `--heartbeat` and `--missed-heartbeats` set the limits of the job.
///
/// A step that fails because of other ranks is run again in a new group of the remaining ranks, from the furthest step
/// that any of these ranks has committed: at most one step is run twice, and none is lost. A process that joins copies
/// the replicated state of the others between two steps. `run` throws `departure` when this process's part is over. The
/// destructor leaves the job, and waits at most 2 s until all other members leave too, or another member has stopped
/// for a group without this process.
///
/// At most one session per process exists at a time. Part of muster::tcp. Throws configuration_error when the context
/// is not elastic.
[[nodiscard]] muster::session session(context& parent, session_options options = {});

}}}  // namespace muster::v0::elastic

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/elastic/detail/definitions.hpp>
#endif
