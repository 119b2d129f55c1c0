// Coroutines of a test, which await outstanding operations.
#pragma once

#include <coroutine>
#include <deque>
#include <exception>
#include <functional>
#include <utility>

namespace test {

// A coroutine of the program whose executor is a queue of functions.
using run_queue = std::deque<std::function<void()>>;
struct routine {
  struct promise_type {
    template <class... Others>
    explicit promise_type(run_queue& queue_in, const Others&...) : queue(queue_in) {}
    routine get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { failure = std::current_exception(); }
    void post(std::function<void()> function) { queue.push_back(std::move(function)); }
    run_queue& queue;
    std::exception_ptr failure;
  };
  // Runs the functions until this coroutine ends. Throws its error.
  void finish() {
    auto& promise = handle.promise();
    while (!handle.done()) {
      const auto next = std::move(promise.queue.front());
      promise.queue.pop_front();
      next();
    }
    const auto failure = promise.failure;
    handle.destroy();
    if (failure) std::rethrow_exception(failure);
  }
  std::coroutine_handle<promise_type> handle;
};

}  // namespace test
