// The event sink: parts of muster report their use of time to it.
#pragma once

#include <cstdint>
#include <string_view>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// The use of a span of time.
enum class activity : std::uint8_t {
  communication,  ///< inside a collective, or waiting for a collective that was started before
  transfer,       ///< an `_async` collective from its start on the wire to its end; overlaps with other work
  data_wait,      ///< waiting for the loader
  cache_hit,      ///< without duration: the cache of a loader had records with this many bytes since the last event
  cache_miss,     ///< without duration: the cache of a loader had to produce records with this many bytes
  phase,          ///< a phase of a tracker, by its name
  aggregate,      ///< waiting until gradients, or parameters on servers, include every rank
  update,         ///< updates of an arena's parameters, either at once or when the step committed
  rebuild,        ///< a change of the ranks, from the stop at this rank to the group of the generation in `bytes`
  step,           ///< an attempt at a step, with its number in `bytes`
  push_age,       ///< without duration: a push to a parameter server took effect, with an age of `bytes` updates
  bucket          ///< a bucket of gradients from its start to its reduction at this rank; overlaps with other work
};

/// A finished span of time, reported by the calling thread.
struct event {
  activity kind;
  std::string_view name;  ///< a literal such as "allreduce" or "next"
  clock::time_point begin;
  clock::time_point end;
  std::uint64_t bytes;  ///< payload at this rank, or the number that `activity` describes for the kind
};

/// A receiver of the events of the threads on which it is installed.
class event_sink {
 public:
  event_sink() = default;
  event_sink(const event_sink&) = delete;
  event_sink& operator=(const event_sink&) = delete;
  virtual ~event_sink() = default;
  /// Records an event. Called at the end of each span by the span's thread. Must be quick and must not throw.
  virtual void record(const event& event) noexcept = 0;
};

/// Returns the sink of the calling thread; null without a sink, in which case nothing is measured.
[[nodiscard]] inline event_sink*& current_event_sink() noexcept {
  static thread_local event_sink* sink = nullptr;
  return sink;
}

/// A scope in which a sink is installed on the calling thread. Its end restores the former sink.
class scoped_event_sink {
 public:
  /// Installs `sink`, which must outlive this object.
  explicit scoped_event_sink(event_sink& sink) noexcept : former_(current_event_sink()) {
    current_event_sink() = &sink;
  }
  ~scoped_event_sink() { current_event_sink() = former_; }
  scoped_event_sink(const scoped_event_sink&) = delete;
  scoped_event_sink& operator=(const scoped_event_sink&) = delete;

  /// Returns the former sink, to which the new sink may pass its events; null if there was none.
  [[nodiscard]] event_sink* former() const noexcept { return former_; }

 private:
  event_sink* former_;
};

/// A scope that is measured and reported to the thread's sink. It costs one branch when there is no sink.
class scoped_event {
 public:
  /// Starts the span. `name` must outlive this object. `bytes` is the size of the data that the activity handles, 0
  /// where that has no meaning.
  scoped_event(activity kind, std::string_view name, std::uint64_t bytes) noexcept
      : sink_(current_event_sink()), event_{kind, name, {}, {}, bytes} {
    if (sink_ != nullptr) event_.begin = clock::now();
  }
  ~scoped_event() {
    if (sink_ == nullptr) return;
    event_.end = clock::now();
    sink_->record(event_);
  }
  scoped_event(const scoped_event&) = delete;
  scoped_event& operator=(const scoped_event&) = delete;

 private:
  event_sink* sink_;
  event event_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/core/detail/definitions.hpp>
#endif
