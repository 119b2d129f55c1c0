// The log of the library: one callback, one line per message, each with its rank.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// The importance of a message. A logger passes on the messages at its level and above.
enum class log_level : int { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

[[nodiscard]] std::string_view to_string(log_level level) noexcept;

/// A message for the callback. The text has no trailing newline and is valid during the call.
struct log_message {
  log_level level;
  int rank;  ///< rank in the world; -1 before it is known
  std::string_view text;
};

/// A function that receives every message that passes the level and the choice of ranks. Only one thread calls it at a
/// time. Messages that the callback itself logs are written to stderr. The callback may replace itself.
using log_callback = std::function<void(const log_message&)>;

/// Replaces the callback. An empty callback restores the default, which writes "muster[rank] level: text" to stderr.
/// Thread safe.
void set_log_callback(log_callback callback);

/// Sets the level (default warning), and enables messages of ranks other than 0 (default off; errors are always
/// logged). Thread safe.
void set_log_level(log_level level, bool all_ranks);

/// Sets and returns the rank in messages of the calling thread. Ranks as threads each set their own.
void set_log_rank(int rank) noexcept;
[[nodiscard]] int log_rank() noexcept;

/// Sends a message to the callback, without passwords and signatures in addresses. Drops messages below the level, and
/// messages of other ranks than 0 as `set_log_level` describes. Never throws: an exception of the callback is ignored.
void log(log_level level, std::string_view text) noexcept;

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
