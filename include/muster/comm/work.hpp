// The handle of an outstanding collective, and the concept of all handles of outstanding operations.
#pragma once

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <muster/core/clock.hpp>

namespace muster { inline namespace v0 {

namespace detail {
class group_state;
class operation_state;
struct operation_release {
  void operator()(operation_state* done) const noexcept;
};
}  // namespace detail

/// The handle of an outstanding operation: `work` of a group, `nccl::work`, `ps::pending`. A handle that was created
/// without an operation is done. `test` makes progress without waiting, and returns true when the operation is done.
/// `wait` waits until it is done, `wait_for` no longer than its limit. All three throw the error of the operation, also
/// after its deadline. `co_await` suspends a coroutine until a handle is done.
template <class T>
concept awaitable_work = std::movable<T> && std::default_initializable<T> && requires(T& started, seconds limit) {
  { started.test() } -> std::same_as<bool>;
  { started.wait() } -> std::same_as<void>;
  { started.wait_for(limit) } -> std::same_as<bool>;
};

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
static_assert(awaitable_work<work>);

namespace detail {

/// The awaiter of a work. Between two tests of the work the executor runs other functions.
template <class Work, class Post>
class work_awaiter {
 public:
  work_awaiter(Work&& awaited, Post post) : work_(std::forward<Work>(awaited)), post_(std::move(post)) {}

  bool await_ready() noexcept { return is_over(); }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> suspended) {
    test_later(suspended);
  }
  void await_resume() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  template <class Promise>
  void test_later(std::coroutine_handle<Promise> suspended) {
    const auto test = [this, suspended] { is_over() ? suspended.resume() : test_later(suspended); };
    if constexpr (std::is_same_v<Post, std::nullptr_t>)
      suspended.promise().post(test);
    else
      post_(test);
  }
  bool is_over() noexcept {
    try {
      return work_.test();
    } catch (...) {
      failure_ = std::current_exception();
      return true;
    }
  }

  Work work_;  // a reference to a work of the coroutine, or a temporary work
  Post post_;
  std::exception_ptr failure_;
};

}  // namespace detail

/// Suspends a coroutine of the program until the work is done: `co_await allreduce_async(...)`, or `co_await` of a work
/// that the coroutine keeps. The promise of the coroutine has its executor: `post(function)` later calls the function,
/// on the thread that uses the group or client, which tests the work and posts again or resumes the coroutine. So many
/// coroutines share a thread. Between two tests there is no pause, so the thread is busy until the work is done.
/// `co_await` throws the error of the operation. The suspended coroutine outlives the work, because the executor refers
/// to it.
template <class Work>
requires awaitable_work<std::remove_cvref_t<Work>>
auto operator co_await(Work&& awaited) noexcept {
  return detail::work_awaiter<Work, std::nullptr_t>(std::forward<Work>(awaited), nullptr);
}
/// Does the same in a coroutine of any library: `co_await muster::resume_by(work, [&](auto f) { asio::post(io, f); })`.
/// `post` calls a copyable function later, on the thread that uses the group.
template <class Work, class Post>
requires awaitable_work<std::remove_cvref_t<Work>>
[[nodiscard]] auto resume_by(Work&& awaited, Post post) {
  return detail::work_awaiter<Work, Post>(std::forward<Work>(awaited), std::move(post));
}

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
