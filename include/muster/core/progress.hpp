// A line on a terminal that shows the progress of the work.
#pragma once

#include <cstdio>
#include <string_view>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// A line that is rewritten in place, at most ten times a second, when the stream is a terminal. Prints nothing
/// otherwise. Not thread safe.
class progress_line {
 public:
  /// Creates the line. `enabled` allows the caller to silence ranks other than 0.
  explicit progress_line(bool enabled = true, std::FILE* terminal = stderr);
  ~progress_line() { clear(); }
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// Shows `text`, truncated to the terminal's width.
  void update(std::string_view text);
  /// Clears the line, so that ordinary output can follow.
  void clear();
  /// Returns true if updates are shown, so that the caller can skip creating the text.
  [[nodiscard]] bool active() const noexcept { return active_; }

 private:
  std::FILE* stream_;
  bool active_;
  bool shown_ = false;
  clock::time_point next_{};
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
