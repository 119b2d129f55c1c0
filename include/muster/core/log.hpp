// What the library says on the way: one callback, one line a message, each with its rank.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace muster { inline namespace v0 {

/// How much a message matters; a logger passes on those at its level and above.
enum class log_level : int { debug = 0, info = 1, warning = 2, error = 3, off = 4 };

[[nodiscard]] std::string_view to_string(log_level level) noexcept;

/// One message as the callback gets it. The text has no newline at its end and is valid during the call.
struct log_message {
  log_level level;
  int rank;  ///< rank in the world; -1 before it is known
  std::string_view text;
};

/// Gets every message that passes the level and the choice of ranks. Called by one thread at a time. What the callback
/// itself logs goes to stderr. The callback may replace itself.
using log_callback = std::function<void(const log_message&)>;

/// Replaces the callback; an empty one brings back the default, which writes "muster[rank] level: text" to stderr.
/// Thread safe.
void set_log_callback(log_callback callback);

/// Sets the level (default warning) and whether ranks other than 0 speak too (default no; errors always do). Thread
/// safe.
void set_log_level(log_level level, bool all_ranks);

/// The rank that messages of the calling thread carry; ranks as threads each set their own.
void set_log_rank(int rank) noexcept;
[[nodiscard]] int log_rank() noexcept;

/// Sends a message to the callback. Never throws; a callback that does is ignored.
void log(log_level level, std::string_view text) noexcept;

}}  // namespace muster::v0
