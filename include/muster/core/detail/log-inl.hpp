#pragma once

#include <muster/core/log.hpp>

#include <atomic>
#include <cstdio>
#include <iterator>
#include <memory>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {
namespace detail {

struct logger {
  std::mutex mutex;                              // held while the callback runs, so that messages of threads do not mix
  std::shared_ptr<const log_callback> callback;  // guarded by mutex
  std::atomic<log_level> level{log_level::warning};
  std::atomic<bool> all_ranks{false};
};

inline logger& instance() {
  static logger the_logger;
  return the_logger;
}

inline thread_local int rank_in_log = -1;
inline thread_local bool is_in_callback = false;  // true while this thread's callback runs, which holds the mutex
inline std::atomic<bool> line_is_shown{false};    // true while stderr, a terminal, shows a line of progress

inline void write_to_stderr(const log_message& message) {
  std::string line = line_is_shown.exchange(false) ? "\r\033[Kmuster" : "muster";
  if (message.rank >= 0) line += "[" + std::to_string(message.rank) + "]";
  line.append(" ").append(to_string(message.level)).append(": ").append(message.text).append("\n");
  std::fwrite(line.data(), 1, line.size(),
              stderr);  // one write per line, so that lines of several processes do not mix either
}

}  // namespace detail

MUSTER_INLINE std::string_view to_string(log_level level) noexcept {
  constexpr std::string_view names[] = {"debug", "info", "warning", "error", "off"};
  const auto index = static_cast<std::size_t>(level);
  return index < std::size(names) ? names[index] : "unknown";
}

MUSTER_INLINE void set_log_callback(log_callback callback) {
  auto next = callback ? std::make_shared<const log_callback>(std::move(callback)) : nullptr;
  const auto lock =
      detail::is_in_callback ? std::unique_lock<std::mutex>() : std::unique_lock(detail::instance().mutex);
  detail::instance().callback.swap(next);
}

MUSTER_INLINE void set_log_level(log_level level, bool all_ranks) {
  detail::instance().level = level;
  detail::instance().all_ranks = all_ranks;
}

MUSTER_INLINE void set_log_rank(int rank) noexcept { detail::rank_in_log = rank; }
MUSTER_INLINE int log_rank() noexcept { return detail::rank_in_log; }

MUSTER_INLINE void log(log_level level, std::string_view text) noexcept {
  detail::logger& target = detail::instance();
  if (level < target.level || level == log_level::off) return;
  if (detail::rank_in_log > 0 && level < log_level::error && !target.all_ranks) return;
  std::shared_ptr<const log_callback> callback;  // keeps the callback alive while it runs, even if it replaces itself
  try {
    const std::string shown = detail::on_one_line(detail::without_secrets(text));
    const log_message message{level, detail::rank_in_log, shown};
    if (detail::is_in_callback) return detail::write_to_stderr(message);
    const std::lock_guard lock(target.mutex);
    callback = target.callback;
    if (!callback) return detail::write_to_stderr(message);
    const auto leaves = [](bool* flag) { *flag = false; };
    const std::unique_ptr<bool, decltype(leaves)> inside(&(detail::is_in_callback = true), leaves);
    (*callback)(message);
  } catch (...) {  // a failed message must not stop the work
  }
}

}}  // namespace muster::v0
