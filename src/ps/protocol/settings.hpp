// By what servers and workers keep each other's time.
#pragma once

#include <cstddef>

#include <muster/core/clock.hpp>
#include <muster/ps/consistency.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// What all processes of a job have in common.
struct protocol_settings {
  consistency how{};
  clock::duration retry = std::chrono::milliseconds(50);      ///< after which unanswered messages are sent again
  clock::duration silence = std::chrono::milliseconds(1000);  ///< after which a server that was not heard is suspect
  /// And one that may be kept from its processor; where it is longer. Its end is told otherwise.
  clock::duration server_silence{};
  clock::duration worker_silence = std::chrono::seconds(30);  ///< and a worker, which may compute for long
  clock::duration one_sided = std::chrono::seconds(1);  ///< for so long one end alone may know of a broken connection
  /// Workers may not have heard the answer to their farewell: so long a server repeats it, and twice as long where what
  /// it sends is not taken.
  clock::duration last_words = std::chrono::milliseconds(300);
  clock::duration quorum = std::chrono::seconds(30);  ///< for which servers of an elastic job wait for a worker
  std::size_t window = std::size_t{64} << 20;  ///< bytes that a learner may lag behind before it is given a fresh copy
  std::size_t moves_at_once = 8;               ///< ranges
  std::size_t copy_piece = std::size_t{1} << 30;  ///< bytes of a copy in one message: at most `most_payload`
};

}}}  // namespace muster::v0::ps
