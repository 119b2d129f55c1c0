// A report of the progress of long work.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// A report on a stream while work lasts. On a terminal it is a line that is rewritten in place, at most five times a
/// second. Another stream receives whole lines: the first after `first_line` (ten seconds by default), and each later
/// line after twice the previous interval, up to ten minutes. The log levels error and off silence it. Not thread safe.
class progress_line {
 public:
  /// Creates the report. `enabled` allows the caller to silence ranks other than 0.
  explicit progress_line(bool enabled = true, std::FILE* stream = stderr, seconds first_line = seconds(10));
  ~progress_line() { clear(); }
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// Shows `text` if a report is due. A terminal truncates it to its width.
  void update(std::string_view text);
  /// Clears the line of a terminal, so that ordinary output can follow.
  void clear();
  /// Returns true if `update` would show its text now, so that the caller can skip creating the text.
  [[nodiscard]] bool is_due() const noexcept { return enabled_ && clock::now() >= next_; }

 private:
  std::FILE* stream_;
  bool enabled_;
  bool on_terminal_;
  bool shown_ = false;
  seconds interval_;
  clock::time_point next_;
};

namespace detail {

/// Returns a duration for a report: "7 s", "12 min", "3 h 5 min"; "unknown time" if it is not a number.
[[nodiscard]] std::string duration_text(double duration);

}  // namespace detail

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
