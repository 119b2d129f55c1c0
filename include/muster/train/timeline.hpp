// What each rank did when: a file that Chrome's and Perfetto's viewers of traces draw.
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

/// Listens to the events of its thread (core/events.hpp) and writes those of all ranks as Chrome trace JSON
/// (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), one process a rank, with a row
/// for steps, phases, collectives, those under way beside other work, waiting for data, and as many for buckets as were
/// under way at once:
///
///     muster::timeline timeline(context);        // does nothing without --trace FILE / MUSTER_TRACE
///     muster::tracker tracker(world);            // its phases are shown too if it is made after the timeline
///     ...
///     timeline.write(world);
///
/// Belongs to the thread that made it, as a tracker does. An event costs two readings of the clock and 48 bytes; when
/// there are more than `most` the later ones are not kept, which `write` logs.
class timeline final : public event_sink {
 public:
  /// Collective. Times count from here, which is the same moment at all ranks up to the time of a barrier. An empty
  /// path, or "none", makes one that neither listens nor writes. Throws configuration_error at rank 0 when the file
  /// cannot be written.
  timeline(group& world, std::string path, std::size_t most = std::size_t{1} << 20);
  /// What --trace says, for the world of a context.
  explicit timeline(context& of);

  /// Collective: rank 0 writes what all ranks have recorded so far, whole or not at all. Throws configuration_error
  /// there when that fails.
  void write(group& world);

  void record(const event& event) noexcept override;

 private:
  [[nodiscard]] std::string events_of(int rank) const;

  std::string path_;
  std::size_t most_;
  std::vector<event> events_;
  std::uint64_t dropped_ = 0;
  clock::time_point origin_{};
  std::optional<scoped_event_sink> listens_;
};

}}  // namespace muster::v0
