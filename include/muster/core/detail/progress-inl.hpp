#pragma once

#include <muster/core/progress.hpp>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 {

MUSTER_INLINE progress_line::progress_line(bool enabled, std::FILE* terminal)
    : stream_(terminal), active_(enabled && isatty(fileno(terminal)) == 1) {}

MUSTER_INLINE void progress_line::update(std::string_view text) {
  if (!active_ || clock::now() < next_) return;
  next_ = deadline_after(seconds(0.1));
  winsize size{};
  const std::size_t width = ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79u;
  const std::string line = "\r" + std::string(text.substr(0, std::min(text.size(), width))) + "\033[K";
  std::fwrite(line.data(), 1, line.size(), stream_);
  std::fflush(stream_);
  shown_ = true;
}

MUSTER_INLINE void progress_line::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  shown_ = false;
}

}}  // namespace muster::v0
