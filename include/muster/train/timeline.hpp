// A timeline over all ranks as a file for the trace viewers of Chrome and Perfetto.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/comm/group.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/events.hpp>

namespace muster { inline namespace v0 {

/// An event sink that records the events of its thread (core/events.hpp) and writes every rank's events as Chrome trace
/// JSON (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), with one process per rank. A
/// process has a row each for steps, phases, collectives, collectives that overlap other work, and waiting for data,
/// and one row for each bucket that was in flight at the same time:
///
///     muster::timeline timeline(context);        // does nothing without --trace FILE / MUSTER_TRACE
///     muster::tracker tracker(world);            // its phases are shown too if it is made after the timeline
///     ...
///     timeline.write(world);
///
/// Belongs to the thread that created it, like a tracker. An event costs two readings of the clock and 48 bytes. When
/// there are more than `most` events the later events are dropped, and `write` logs their number.
class timeline final : public event_sink {
 public:
  /// Collective. Times count from the constructor, whose end is the same moment at all ranks up to the duration of a
  /// barrier. With an empty path, or "none", the timeline neither records nor writes. Throws configuration_error at
  /// rank 0 when the file cannot be written.
  timeline(group& world, std::string path, std::size_t most = std::size_t{1} << 20);
  /// Uses the path of `--trace`, for the world of a context.
  explicit timeline(context& ctx);

  /// Writes every rank's events so far, at rank 0. The file is complete or not written at all. Collective. Throws
  /// configuration_error at rank 0 when writing fails.
  void write(group& world);

  void record(const event& event) noexcept override;

 private:
  [[nodiscard]] std::string events_of(int rank) const;

  std::string path_;
  std::size_t most_;
  std::vector<event> events_;
  std::uint64_t dropped_ = 0;
  clock::time_point origin_{};
  std::optional<scoped_event_sink> registration_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/train/detail/definitions.hpp>
#endif
