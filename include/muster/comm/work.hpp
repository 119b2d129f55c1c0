// The handle of an outstanding collective.
#pragma once

#include <memory>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class group_state;
class operation_state;
struct operation_release {
  void operator()(operation_state* done) const noexcept;
};
}  // namespace detail

/// The handle of an outstanding collective, which an `_async` call returns. Do not read or write the buffers of the
/// call until it is done. Collectives of a group run in the order in which they were started; any number may be
/// outstanding. They make progress when this rank tests or waits for any collective or makes another call on the group,
/// and also without such calls if the group has a progress thread.
///
/// Used by the thread that uses the group. Destroying an unfinished work waits for it, since peers may still use its
/// buffer; the next call on the group throws its error.
class [[nodiscard]] work {
 public:
  work() noexcept = default;  ///< done
  work(std::shared_ptr<detail::group_state> group,
       std::unique_ptr<detail::operation_state, detail::operation_release> op);
  work(work&&) noexcept;
  work& operator=(work&&) noexcept;
  ~work();

  /// Makes progress without waiting; returns true when done. Throws the error of the collective.
  bool test();
  /// Waits until the collective is done. Throws its error, such as timeout_error or peer_failure. Afterwards the buffer
  /// belongs to the caller again in any case; its content is undefined after an error.
  void wait();
  /// Waits no longer than `limit`; returns true when done, false when still outstanding, which is no error.
  bool wait_for(seconds limit);

 private:
  void end() noexcept;
  void take_result();

  std::shared_ptr<detail::group_state> group_;  // outlives the operation, whose memory belongs to the group's pool
  std::unique_ptr<detail::operation_state, detail::operation_release> operation_;
};

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
