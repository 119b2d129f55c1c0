// The parameters of a training on servers: one worker's side.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <muster/comm/context.hpp>
#include <muster/elastic/state.hpp>
#include <muster/ps/job.hpp>
#include <muster/train/arena.hpp>

namespace muster { inline namespace v0 { namespace detail {

// An arena as one table of a job: dense, or sparse with a row for each element that was ever pushed. Used by the thread
// that is the rank; the arena outlives it.
class served {
 public:
  // Collective over the ranks of the context. The servers apply `update` (`ps::make_update`).
  served(context& of, arena& values, std::string update, bool sparse);

  [[nodiscard]] bool is_server() const noexcept { return job_.is_server(); }
  // Of the workers that live: it begins, evaluates and saves.
  [[nodiscard]] bool is_first() { return ended_first_.value_or(!is_server() && job_.tables().is_first_worker()); }
  // The workers that were started together; for a server the servers. A death ends collectives among either.
  [[nodiscard]] group& workers() noexcept { return workers_; }
  // This rank by itself, whatever dies.
  [[nodiscard]] group& alone() noexcept { return alone_; }
  [[nodiscard]] bool is_sparse() const noexcept { return sparse_; }

  // Of a server: until all workers have finished. When all have died it saves the tables there.
  void serve(const std::string& folder) { job_.serve(folder); }
  // Of a worker: waits for a part of some batches, or until the first one has concluded. Of the first one also for a
  // place at which it is to save or conclude, and, where no worker has begun the order, for nothing.
  const ps::lease& next_lease();
  // What a step has while one is held; the part of each batch that it is to train.
  [[nodiscard]] batch_shard shard() const noexcept { return lease_.shard(); }
  // Of the first worker: the table is the one that was saved in `folder`, or begins with the arena's parameters; and
  // what is to be trained, from where the table was saved, or from there.
  std::optional<ps::saved_tables> begin(const std::string& folder, ps::order_plan plan);
  // Of the first worker, when its lease is to save: writes the tables, and lets the others go on. Where they cannot be
  // written that is a warning, and those before stay.
  void save(const std::string& folder);
  // Throws configuration_error if the last save of this worker failed.
  void require_saved() const;

  // Runs `f`, which may compute for longer than the servers wait for a message of this worker, and may pull.
  void evaluate(const std::function<void()>& f);

  // These elements of the arena, or all of a dense one, become the table's. The next push is of the same.
  void pull(std::span<const std::uint64_t> elements = {});
  // Hands the gradients over, with the learning rate; ends the worker's clock.
  void push(double learning_rate);
  void end_clock() {
    ++trained_;
    job_.tables().next_clock();
  }

  // Of gradients, as they were encoded.
  [[nodiscard]] std::uint64_t bytes_pushed() { return is_server() ? 0 : job_.tables().bytes_pushed() - assigned_; }

  // Of the first worker, when all is trained, evaluated and said: the others may end. If it dies before, one of them is
  // the first.
  void pass_end();
  // Of a worker: the last call.
  void finish() {
    ended_first_ = is_first();  // soon the map names none
    job_.finish();
  }

 private:
  arena& arena_;
  bool sparse_;
  ps::job job_;
  std::mutex in_use_;  // its client, during an evaluation
  std::condition_variable_any evaluated_;
  group workers_;
  group alone_;
  ps::lease lease_;
  std::optional<bool> ended_first_;
  std::uint64_t trained_ = 0;   // batches of it that were pushed
  std::uint64_t assigned_ = 0;  // bytes
  std::string unsaved_;         // why the last save failed
  std::vector<std::uint64_t> elements_, pushed_elements_;
  std::vector<float> rows_, pushed_;
  ps::pending under_way_;  // after what it reads
};

}}}  // namespace muster::v0::detail
