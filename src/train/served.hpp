// The parameters of a training on servers: one worker's side.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/elastic/state.hpp>
#include <muster/ps/job.hpp>
#include <muster/train/arena.hpp>

namespace muster::inline v0::detail {

// An arena as one table of a job: dense, or sparse with a row for each element that was ever pushed. Used by the thread
// that is the rank; the arena outlives it.
class served {
 public:
  // Collective over the ranks of the context. The servers apply `update` (`ps::make_update`).
  served(context& of, arena& values, std::string update, bool sparse);

  [[nodiscard]] bool is_server() const noexcept { return job_.is_server(); }
  [[nodiscard]] bool is_first() const noexcept { return !is_server() && workers_.rank() == 0; }
  // The workers; for a server the servers. A server that dies ends collectives among either.
  [[nodiscard]] group& workers() noexcept { return workers_; }
  // This rank by itself.
  [[nodiscard]] group& alone() noexcept { return alone_; }
  [[nodiscard]] bool is_sparse() const noexcept { return sparse_; }

  // Of a server: until all workers have finished.
  void serve() { job_.serve(); }
  // Collective over the workers: the table is the one that was saved in `folder`, or begins with the arena's
  // parameters. Where there is a folder, `save` may be called.
  std::optional<ps::saved_tables> start(const std::string& folder, bool resume);
  // Collective over the workers.
  void save(const std::string& folder, const state_position& at) { ps::save_tables(job_, *savers_, folder, at); }

  // These elements of the arena, or all of a dense one, become the table's. The next push is of the same.
  void pull(std::span<const std::uint64_t> elements = {});
  // Hands the gradients over, with the learning rate; ends the worker's clock.
  void push(double learning_rate);
  void end_clock() { job_.tables().next_clock(); }

  // Of gradients, as they were encoded.
  [[nodiscard]] std::uint64_t bytes_pushed() { return is_server() ? 0 : job_.tables().bytes_pushed() - assigned_; }

  // Of the first worker: all others have finished.
  void wait_for_others() { job_.tables().wait_for_others(); }
  // Of a worker: the last call.
  void finish() { job_.finish(); }

 private:
  arena& arena_;
  bool sparse_;
  ps::job job_;
  group workers_;
  group alone_;
  std::optional<group> savers_;  // which the death of a server does not end
  std::uint64_t assigned_ = 0;   // bytes
  std::vector<std::uint64_t> elements_, pushed_elements_;
  std::vector<float> rows_, pushed_;
  ps::pending under_way_;  // after what it reads
};

}  // namespace muster::inline v0::detail
