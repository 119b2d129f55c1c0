// A collective under way.
#pragma once

#include <memory>

#include <muster/core/clock.hpp>

namespace muster::inline v0 {

namespace detail {
class group_state;
class operation_state;
struct operation_release {
  void operator()(operation_state* done) const noexcept;
};
}  // namespace detail

/// What an `_async` collective returns. The buffers of the call are its alone until it is done: neither read nor write
/// them before. Collectives of one group run in the order they were started, any number of them may be under way, and
/// they make progress whenever this rank tests or waits for any of them or makes another call on the group, and by
/// themselves where the group has a progress thread.
///
/// Used by the thread that uses the group. Destroying one that is not done waits for it, since its buffer may still be
/// touched; an error then stays in the group, where the next call throws it.
class [[nodiscard]] work {
 public:
  work() noexcept = default;  ///< done
  work(std::shared_ptr<detail::group_state> group,
       std::unique_ptr<detail::operation_state, detail::operation_release> op);
  work(work&&) noexcept;
  work& operator=(work&&) noexcept;
  ~work();

  /// Makes progress without waiting; true when done. Throws what the collective failed with.
  bool test();
  /// Waits until it is done. Throws what it failed with, timeout_error and peer_failure among it; the buffer is free
  /// then in any case, and its content is not defined after an error.
  void wait();
  /// Waits no longer than `limit`; true when done, false when it goes on (that is no failure).
  bool wait_for(seconds limit);

 private:
  void end() noexcept;
  void take_result();

  std::shared_ptr<detail::group_state> group_;  // outlives the operation, which lives in its pool
  std::unique_ptr<detail::operation_state, detail::operation_release> operation_;
};

}  // namespace muster::inline v0
