// The threads among which a rank divides its arithmetic: oneTBB threads, in a task arena of the rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <thread>

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

namespace examples {

/// A task arena with `threads` threads, including the caller. The division into tasks depends only on the shape of the
/// problem, and no two tasks write to the same numbers, so that results are bitwise equal for any number of threads.
/// Used by one thread at a time.
class rank_tasks {
 public:
  explicit rank_tasks(int threads = 1) {
    if (threads > 1) team_ = std::make_unique<team>(threads);
  }

  [[nodiscard]] bool are_serial() const noexcept { return !team_; }
  [[nodiscard]] std::size_t threads() const noexcept { return team_ ? team_->threads : 1; }
  /// Returns the index of the thread that runs the calling body of run(). A thread runs one body at a time.
  [[nodiscard]] std::size_t worker() const noexcept {
    return team_ ? static_cast<std::size_t>(tbb::this_task_arena::current_thread_index()) : 0;
  }

  /// Calls body(0) .. body(count - 1), each once and in any order, with the caller's rounding and denormal modes.
  /// Rethrows an exception of a body.
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
    tbb::global_control limit;  // oneTBB has no more threads than cores unless the limit is raised.
    tbb::task_arena arena;
    std::size_t threads;
  };
  std::unique_ptr<team> team_;
};

}  // namespace examples
