// The report of progress on terminals and on other streams.
#include <muster/core/progress.hpp>

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <muster/core/log.hpp>

#include "catch.hpp"

namespace {

// Returns the microseconds since the clock's epoch.
long now_us() {
  return static_cast<long>(std::chrono::duration<double, std::micro>(muster::clock::now().time_since_epoch()).count());
}

// Two ends of a pseudo terminal or of a pipe.
struct connection {
  int reader = -1;
  std::FILE* stream = nullptr;

  explicit connection(bool terminal) {
    int ends[2];
    REQUIRE((terminal ? ::openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) : ::pipe(ends)) == 0);
    reader = ends[0];
    stream = ::fdopen(ends[1], "w");
    REQUIRE(stream != nullptr);
    ::fcntl(reader, F_SETFL, O_NONBLOCK);
  }
  ~connection() {
    std::fclose(stream);
    ::close(reader);
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;

  // Returns everything that was written since the last call.
  [[nodiscard]] std::string received() const {
    std::string text;
    char part[4096];
    for (ssize_t n; (n = ::read(reader, part, sizeof part)) > 0;) text.append(part, static_cast<std::size_t>(n));
    return text;
  }
};

// Updates until the stream has received `count` reports, each with the time of its update.
std::vector<long> times_of_reports(muster::progress_line& progress, const connection& ends, std::size_t count) {
  std::vector<long> times;
  std::string text;
  while (times.size() < count) {
    if (!progress.is_due()) continue;
    const long now = now_us();
    progress.update("at " + std::to_string(now) + " of many");
    text += ends.received();
    times.clear();
    for (std::size_t at = 0; (at = text.find("at ", at)) != std::string::npos; at += 3)
      times.push_back(std::stol(text.substr(at + 3)));
  }
  return times;
}

}  // namespace

TEST_CASE("a line of progress is rewritten on a terminal at most five times a second") {
  const connection ends(true);
  {
    muster::progress_line progress(true, ends.stream);
    REQUIRE(progress.is_due());
    progress.update("first");
    CHECK(ends.received() == "\rfirst\033[K");
    CHECK_FALSE(progress.is_due());
    progress.update("too early");
    CHECK(ends.received().empty());
    const auto times = times_of_reports(progress, ends, 3);
    for (std::size_t k = 1; k < times.size(); ++k) CHECK(times[k] - times[k - 1] >= 190'000);
  }
  CHECK(ends.received() == "\r\033[K");  // ordinary output follows in an empty line
}

TEST_CASE("a line of progress is not longer than the terminal is wide") {
  const connection ends(true);
  const winsize size{.ws_row = 24, .ws_col = 20, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(::ioctl(ends.reader, TIOCSWINSZ, &size) == 0);
  muster::progress_line progress(true, ends.stream);
  progress.update("0123456789012345678901234567890123456789");
  CHECK(ends.received() == "\r0123456789012345678\033[K");
}

TEST_CASE("progress that is piped is whole lines at growing intervals") {
  const connection ends(false);
  CHECK_FALSE(muster::progress_line(true, ends.stream, muster::seconds(60)).is_due());  // short work prints nothing
  muster::progress_line progress(true, ends.stream, muster::seconds(0.002));
  const auto times = times_of_reports(progress, ends, 6);
  for (std::size_t k = 1; k < times.size(); ++k) CHECK(times[k] - times[k - 1] >= 1900L << k);
  progress.clear();
  CHECK(ends.received().empty());
}

TEST_CASE("progress is silent at other ranks and below the log level of warnings") {
  const connection ends(true);
  muster::progress_line disabled(false, ends.stream);
  CHECK_FALSE(disabled.is_due());
  disabled.update("nothing");
  for (const auto level : {muster::log_level::error, muster::log_level::off}) {
    muster::set_log_level(level, false);
    muster::progress_line quiet(true, ends.stream);
    CHECK_FALSE(quiet.is_due());
    quiet.update("nothing");
  }
  muster::set_log_level(muster::log_level::warning, false);
  CHECK(ends.received().empty());
}

TEST_CASE("remaining times are short texts") {
  using muster::detail::duration_text;
  CHECK(duration_text(0) == "0 s");
  CHECK(duration_text(99) == "99 s");
  CHECK(duration_text(100) == "2 min");
  CHECK(duration_text(3599) == "1 h 0 min");
  CHECK(duration_text(11'100) == "3 h 5 min");
  for (const double unknown : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1e10})
    CHECK(duration_text(unknown) == "unknown time");
}
