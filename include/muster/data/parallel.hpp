// Functions that divide work into tasks for the threads of oneTBB. Private to muster's own sources. If muster is
// compiled without oneTBB (muster::headers), the caller does all work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#ifdef MUSTER_HAVE_TBB
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <stdexcept>
#include <string>

#include <muster/core/log.hpp>
#endif

namespace muster { inline namespace v0 { namespace data { namespace detail {

/// Returns the number of threads to use for `tasks` tasks if the user requested `requested` threads (0: as many as this
/// process may use).
inline std::size_t thread_count(int requested, std::size_t tasks) noexcept {
  const std::size_t most = requested > 0 ? static_cast<std::size_t>(requested) : std::thread::hardware_concurrency();
  return std::clamp<std::size_t>(tasks, 1, std::max<std::size_t>(most, 1));
}

/// Up to `threads` threads of oneTBB, besides the caller, that run tasks concurrently with the caller. A task may also
/// not run before this object is destroyed, so the caller must be able to do all work itself. Tasks do not throw.
class background_tasks {
#ifdef MUSTER_HAVE_TBB
 public:
  // The library oneTBB limits the number of threads to the number of cores, but these threads also wait for files. A
  // slot of the arena is kept for the caller, which runs the tasks itself if oneTBB can start no thread.
  explicit background_tasks(std::size_t threads) : arena_(static_cast<int>(threads) + 1, 1) {
    const std::size_t most = std::max<std::size_t>(std::thread::hardware_concurrency(), threads + 1);
    try_with_threads([&] { limit_.emplace(tbb::global_control::max_allowed_parallelism, most); });
  }
  background_tasks(const background_tasks&) = delete;
  /// Waits for the tasks that were started.
  ~background_tasks() {
    arena_.execute([this] { group_.wait(); });
  }
  template <class Task>
  void start(const Task& task) {
    try_with_threads([&] { arena_.enqueue(group_.defer(task)); });
  }

 private:
  // Calls a function of oneTBB that throws if it needs a new thread and the system refuses one.
  template <class Function>
  static void try_with_threads(const Function& function) {
    try {
      function();
    } catch (const std::runtime_error& failed) {
      on_refused_thread(failed.what());
    }
  }
  static void on_refused_thread(const char* reason) {
    static const bool is_told =
        (log(log_level::warning, std::string("the caller does the work of a thread that oneTBB cannot start (") +
                                     reason + "); raise the limit of processes (ulimit -u)"),
         true);
    (void)is_told;
  }

  std::optional<tbb::global_control> limit_;
  tbb::task_arena arena_;
  tbb::task_group group_;
#else
 public:
  explicit background_tasks(std::size_t) {}
  template <class Task>
  void start(const Task&) {}
#endif
};

/// Calls body(0) .. body(tasks - 1), each once, on several threads including the caller. If calls throw, the exception
/// of the lowest task is rethrown, so that the outcome does not depend on the threads.
template <class Body>
void parallel_for(std::size_t tasks, int threads, const Body& body) {
  std::atomic<std::size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::size_t failed_task = tasks;
  std::exception_ptr failure;
  const auto work = [&] {
    // Tasks are started in order. When a task fails, all earlier tasks have been started and will finish.
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
    std::optional<background_tasks> helper_tasks;
    const std::size_t helpers = thread_count(threads, tasks) - 1;
    if (helpers > 0) helper_tasks.emplace(helpers);
    for (std::size_t n = 0; n < helpers; ++n) helper_tasks->start(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}}}}  // namespace muster::v0::data::detail
