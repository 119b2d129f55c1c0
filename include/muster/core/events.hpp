// The event sink: parts of muster tell it what they spend time on.
#pragma once

#include <cstdint>
#include <string_view>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

/// What a span of time was spent on.
enum class activity : std::uint8_t {
  communication,  ///< inside a collective, or waiting for one that was started before
  transfer,       ///< an `_async` collective from when its turn came to its end; other work goes on in it
  data_wait,      ///< waiting for the loader
  cache_hit,      ///< no time: a loader's cache had records of so many bytes since the last event
  cache_miss,     ///< no time: a loader's cache had to make records of so many bytes
  phase,          ///< a phase of a tracker, by its name
  aggregate,      ///< waiting until gradients, or parameters that servers have, are those of all ranks
  update,         ///< updates of the parameters of an arena, where they were not deferred, or when the step committed
  rebuild,        ///< a change of the ranks, from when this one stopped to the group of the generation in `bytes`
  step,           ///< an attempt at a step; its number is in `bytes`
  push_age,       ///< no time: a push to a parameter server counts, and was as many updates old as `bytes` says
  bucket  ///< a bucket of gradients from when it left to when this rank saw it reduced; other work goes on in it
};

/// A finished span of time, told by the calling thread.
struct event {
  activity what;
  std::string_view name;  ///< "allreduce", "next"; a literal
  clock::time_point begin;
  clock::time_point end;
  std::uint64_t bytes;  ///< payload of this rank
};

/// Gets the events of the threads it is installed on.
class event_sink {
 public:
  event_sink() = default;
  event_sink(const event_sink&) = delete;
  event_sink& operator=(const event_sink&) = delete;
  virtual ~event_sink() = default;
  /// Called at the end of each span by the thread that lived it; must be quick and must not throw.
  virtual void record(const event& event) noexcept = 0;
};

/// The sink of the calling thread; null when there is none, and then nothing is measured.
[[nodiscard]] inline event_sink*& current_event_sink() noexcept {
  static thread_local event_sink* sink = nullptr;
  return sink;
}

/// Installs a sink on the calling thread for the life of this object and puts the former one back after.
class scoped_event_sink {
 public:
  /// `sink` outlives this object.
  explicit scoped_event_sink(event_sink& sink) noexcept : former_(current_event_sink()) {
    current_event_sink() = &sink;
  }
  ~scoped_event_sink() { current_event_sink() = former_; }
  scoped_event_sink(const scoped_event_sink&) = delete;
  scoped_event_sink& operator=(const scoped_event_sink&) = delete;

  /// The one that was there before, which may want to hear the same; null when there was none.
  [[nodiscard]] event_sink* former() const noexcept { return former_; }

 private:
  event_sink* former_;
};

/// Measures its own life and tells the thread's sink; costs one branch when there is none.
class scoped_event {
 public:
  /// `name` outlives this object; `bytes` is what the activity handles, 0 where that has no meaning.
  scoped_event(activity what, std::string_view name, std::uint64_t bytes) noexcept
      : sink_(current_event_sink()), event_{what, name, {}, {}, bytes} {
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
