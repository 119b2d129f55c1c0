// Measures how long a rank waits for others. The rest of the rank's time is its own part of a step.
#pragma once

#include <muster/core/clock.hpp>
#include <muster/core/events.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Sums the time that this thread waits for other ranks, while the object exists. The sink that was installed before
/// receives every event as well.
class waiting_time final : public event_sink {
 public:
  void record(const event& measured) noexcept override {
    if (measured.kind == activity::communication && measured.begin >= counted_until_) {
      sum_ += measured.end - measured.begin;
      counted_until_ = measured.end;
    }
    if (installed_.former() != nullptr) installed_.former()->record(measured);
  }
  [[nodiscard]] clock::duration sum() const noexcept { return sum_; }

 private:
  clock::duration sum_{};
  clock::time_point counted_until_{};
  scoped_event_sink installed_{*this};
};

}}}  // namespace muster::v0::detail
