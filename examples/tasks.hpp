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

  /// Calls body(0) .. body(count - 1), each once and in any order; rethrows what one of them throws.
  template <class Body>
  void run(std::size_t count, const Body& body) const {
    if (!team_ || count < 2) {
      for (std::size_t task = 0; task < count; ++task) body(task);
    } else {
      team_->arena.execute([&] { tbb::parallel_for(std::size_t{0}, count, body, tbb::simple_partitioner()); });
    }
  }

 private:
  struct team {
    explicit team(int threads)
        : limit(tbb::global_control::max_allowed_parallelism,
                std::max<std::size_t>(std::thread::hardware_concurrency(), static_cast<std::size_t>(threads))),
          arena(threads) {}
    tbb::global_control limit;  // oneTBB has no more threads than cores unless more are asked for
    tbb::task_arena arena;
  };
  std::unique_ptr<team> team_;
};

}  // namespace examples
