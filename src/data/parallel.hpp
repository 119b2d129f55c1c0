// Threads for work that is cut into numbered tasks; private to muster's own sources.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace muster::inline v0::detail {

/// Threads to use when `asked` were asked for (0: as many as this process may use) and there are `tasks` to share.
inline std::size_t thread_count(int asked, std::size_t tasks) noexcept {
  const std::size_t most = asked > 0 ? static_cast<std::size_t>(asked) : std::thread::hardware_concurrency();
  return std::clamp<std::size_t>(tasks, 1, std::max<std::size_t>(most, 1));
}

/// Calls body(0) .. body(tasks - 1), each once, on several threads of which the caller is one. When calls throw, the
/// exception of the lowest task is the one that comes out, so that the outcome does not depend on the threads.
template <class Body>
void parallel_for(std::size_t tasks, int threads, const Body& body) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::size_t failed_task = tasks;
  std::exception_ptr failure;
  const auto work = [&] {
    // Tasks are handed out in order: whatever has failed, every task before it was begun and will be finished.
    while (!failed) {
      const std::size_t task = next++;
      if (task >= tasks) return;
      try {
        body(task);
      } catch (...) {
        const std::lock_guard lock(mutex);
        failed = true;
        if (task < failed_task) {
          failed_task = task;
          failure = std::current_exception();
        }
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t n = thread_count(threads, tasks); n > 1; --n) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads to be had: those that are there do the work
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace muster::inline v0::detail
