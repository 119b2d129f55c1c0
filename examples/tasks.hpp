// What a rank splits its arithmetic over: the threads of oneTBB, in a task arena of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace examples {

/// `threads` threads, of which the caller is one. What is cut into tasks is cut by its shape alone and no two tasks
/// write to the same numbers, so that there are the same bits for any number of threads. Used by one thread at a time.
class rank_tasks {
 public:
  explicit rank_tasks(int threads = 1) {
    if (threads > 1) team_ = std::make_unique<team>(threads);
  }

  [[nodiscard]] bool are_serial() const noexcept { return !team_; }
  [[nodiscard]] std::size_t threads() const noexcept { return team_ ? team_->threads : 1; }
  /// In a body of run(): which of the threads it is on. One body at a time is on a thread.
  [[nodiscard]] std::size_t worker() const noexcept {
    return team_ ? static_cast<std::size_t>(tbb::this_task_arena::current_thread_index()) : 0;
  }

  /// Calls body(0) .. body(count - 1), each once and in any order, in the caller's way of rounding and of taking small
  /// numbers for zeros; rethrows what one of them throws.
  template <class Body>
  void run(std::size_t count, const Body& body) const {
    if (!team_) {
      for (std::size_t task = 0; task < count; ++task) body(task);
      return;
    }
    using context = tbb::task_group_context;
    context as_caller(context::isolated, context::default_traits | context::fp_settings);
    team_->arena.execute([&] { tbb::parallel_for(std::size_t{0}, count, body, tbb::simple_partitioner(), as_caller); });
  }

 private:
  struct team {
    explicit team(int count)
        : limit(tbb::global_control::max_allowed_parallelism,
                std::max<std::size_t>(std::thread::hardware_concurrency(), static_cast<std::size_t>(count))),
          arena(count),
          threads(static_cast<std::size_t>(count)) {}
    tbb::global_control limit;  // oneTBB has no more threads than cores unless more are asked for
    tbb::task_arena arena;
    std::size_t threads;
  };
  std::unique_ptr<team> team_;
};

}  // namespace examples
