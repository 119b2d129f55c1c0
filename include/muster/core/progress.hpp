// A line that shows how far the work is, on a terminal only.
#pragma once

#include <cstdio>
#include <string_view>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// Rewrites one line in place, at most ten times a second, when the stream is a terminal; prints nothing otherwise.
/// Used by one thread.
class progress_line {
 public:
  /// `enabled` lets the caller silence ranks other than 0.
  explicit progress_line(bool enabled = true, std::FILE* stream = stderr);
  ~progress_line() { clear(); }
  progress_line(const progress_line&) = delete;
  progress_line& operator=(const progress_line&) = delete;

  /// Shows `text`, cut to the terminal's width.
  void update(std::string_view text);
  /// Wipes the line, so that ordinary output can follow.
  void clear();
  /// Whether updates are shown at all; lets the caller skip making the text.
  [[nodiscard]] bool active() const noexcept { return active_; }

 private:
  std::FILE* stream_;
  bool active_;
  bool shown_ = false;
  clock::time_point next_{};
};

}}  // namespace muster::v0
