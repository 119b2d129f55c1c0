// Timing and size limits of the protocol between servers and workers.
#pragma once

#include <cstddef>

#include <muster/core/clock.hpp>
#include <muster/ps/consistency.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// Settings that are equal at all processes of a job.
struct protocol_settings {
  consistency model{};
  clock::duration retry = std::chrono::milliseconds(50);  ///< interval after which unanswered messages are sent again
  /// Interval without messages after which a server is suspected.
  clock::duration detection_silence = std::chrono::milliseconds(1000);
  /// Used for servers instead of `detection_silence` if longer, where connections or the host report the end of a
  /// server: silence then usually means that the server waits for a processor.
  clock::duration least_server_silence{};
  /// Interval without messages after which a worker is suspected. A worker may compute for long.
  clock::duration worker_silence = std::chrono::seconds(30);
  /// Longest time for which only one end may know that a connection is broken.
  clock::duration one_sided_break = std::chrono::seconds(1);
  /// A server that is done answers farewells for this long, because a worker may have missed the answer. The time is
  /// twice as long while sends of the server are still outstanding.
  clock::duration farewell_time = std::chrono::milliseconds(300);
  /// Time for which the servers of an elastic job without workers wait for a worker.
  clock::duration quorum = std::chrono::seconds(30);
  std::size_t most_learner_lag = std::size_t{64}
                                 << 20;           ///< bytes that a learner may lag behind before it receives a new copy
  std::size_t moves_at_once = 8;                  ///< maximum number of ranges that move simultaneously
  std::size_t copy_piece = std::size_t{1} << 30;  ///< bytes of a copy in one message, at most `most_payload`
};

}}}  // namespace muster::v0::ps
