#pragma once

#include <muster/core/progress.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <muster/core/detail/log-inl.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE progress_line::progress_line(bool enabled, std::FILE* stream, seconds first_line)
    : stream_(stream),
      enabled_(enabled && detail::instance().level.load() <= log_level::warning),
      on_terminal_(enabled_ && isatty(fileno(stream)) == 1),
      interval_(on_terminal_ ? seconds(0.2) : first_line),
      next_(on_terminal_ ? clock::now() : deadline_after(first_line)) {}

MUSTER_INLINE void progress_line::update(std::string_view text) {
  if (!is_due()) return;
  std::string line(text);
  if (on_terminal_) {
    winsize size{};
    const std::size_t width =
        ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
    line = "\r" + line.substr(0, width) + "\033[K";
    shown_ = true;
  } else {
    line += "\n";
    interval_ = std::min(2 * interval_, seconds(600));
  }
  std::fwrite(line.data(), 1, line.size(), stream_);
  std::fflush(stream_);
  if (on_terminal_ && stream_ == stderr) detail::line_is_shown = true;
  next_ = deadline_after(interval_);
}

MUSTER_INLINE void progress_line::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  shown_ = false;
  if (stream_ == stderr) detail::line_is_shown = false;
}

MUSTER_INLINE std::string detail::duration_text(double duration) {
  if (!std::isfinite(duration) || duration < 0 || duration > 1e9) return "unknown time";
  if (duration < 99.5) return printed("%.0f s", duration);
  const auto minutes = static_cast<unsigned long>(std::lround(duration / 60));
  return minutes < 60 ? printed("%lu min", minutes) : printed("%lu h %lu min", minutes / 60, minutes % 60);
}

}}  // namespace muster::v0
