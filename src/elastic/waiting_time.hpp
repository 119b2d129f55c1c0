// How long a rank waits for others: what is left of its time is its own.
#pragma once

#include <muster/core/clock.hpp>
#include <muster/core/events.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// How long this thread waits for other ranks; the sink that was installed before gets every event as well.
class waiting_time final : public event_sink {
 public:
  void record(const event& seen) noexcept override {
    if (seen.what == activity::communication && seen.begin >= counted_until_) {
      sum_ += seen.end - seen.begin;
      counted_until_ = seen.end;
    }
    if (installed_.former() != nullptr) installed_.former()->record(seen);
  }
  [[nodiscard]] clock::duration sum() const noexcept { return sum_; }

 private:
  clock::duration sum_{};
  clock::time_point counted_until_{};
  scoped_event_sink installed_{*this};
};

}}}  // namespace muster::v0::detail
