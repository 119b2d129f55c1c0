// The parameters of a training on servers, as a worker uses them.
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

// An adapter from an arena to a table of a parameter-server job. The table is dense, or sparse with a row for each
// element that a worker has pushed. Use it on the thread that is the rank. The arena must outlive it.
//
// The calls of a worker, in order: `next_lease` until the training is over. Each lease has a kind.
// - `unknown`: no worker has begun the order of the data. Only the first worker gets this kind, and calls `begin`.
// - `granted`: the lease assigns data. The worker trains the data, and calls `push` and `end_clock` for each step.
// - `save`: all earlier data is trained. Only the first worker gets this kind, and calls `save`.
// - `last`: all data is trained. Only the first worker gets this kind, evaluates, and calls `confirm_end`.
// - `over`: the first worker has concluded the training.
// Then each worker calls `finish`. At any moment exactly one living worker is the first, so only that worker begins,
// saves and concludes.
class parameter_server_backend {
 public:
  // Connects to the job. Collective over the ranks of the context. The servers apply `update` (`ps::make_update`), and
  // compute the initial values of a dense table by `initial_values`, unless it is empty. The properties of the training
  // are the same at all ranks.
  parameter_server_backend(context& ctx, arena& tensors, std::string update,
                           std::function<void(std::size_t, std::span<float>)> initial_values, bool sparse,
                           std::vector<compared_property> properties);

  [[nodiscard]] bool is_server() const noexcept { return job_.is_server(); }
  // Returns true at the first worker in this process's shard map, which begins, evaluates and saves. Joining workers
  // come last in the map. Sends nothing.
  [[nodiscard]] bool is_first() { return ended_first_.value_or(!is_server() && job_.tables().is_first_worker()); }
  // Returns the group of the workers that were started together; at a server the group of the servers. When a rank
  // dies, collectives in its group fail.
  [[nodiscard]] group& workers() noexcept { return workers_; }
  // Returns a group that contains this rank alone, which no death affects.
  [[nodiscard]] group& alone() noexcept { return alone_; }
  [[nodiscard]] bool is_sparse() const noexcept { return sparse_; }

  // Runs a server until all workers have finished. When all workers have died the server saves the tables in `folder`.
  void serve(const std::string& folder) { job_.serve(folder); }
  // Waits for a lease on a part of some batches, or until the first worker has concluded the training. At the first
  // worker it also returns for a position at which that worker must save or conclude, and at once if no worker has
  // begun the order of the data. Called by workers.
  const ps::lease& next_lease();
  // Returns the part of a batch that the step must train. Valid while the worker has a lease.
  [[nodiscard]] batch_shard shard() const noexcept { return lease_.shard(); }
  // Begins the training at the first worker: loads the table that was saved in `folder`, or assigns the arena's
  // parameters to the table if the servers cannot compute the initial values. Then starts `plan` from the position of
  // the saved table, or else from the start of `plan`. Returns the saved position, if there is one.
  std::optional<ps::saved_tables> begin(const std::string& folder, ps::order_plan plan);
  // Writes the tables, and lets the other workers continue. Called by the first worker when its lease is to save. A
  // failed write logs a warning, and the earlier tables remain.
  void save(const std::string& folder);
  // Throws configuration_error if this worker's last save failed.
  void require_saved() const;

  // Runs `f`, which may pull, and may compute for longer than the servers wait for a message from this worker.
  void evaluate(const std::function<void()>& f);

  // Copies elements from the table into the arena: the given elements of a sparse table, whose gradients the next push
  // sends, or all elements of a dense table.
  void pull(std::span<const std::uint64_t> elements = {});
  // Pushes the gradients, with the learning rate as the scale. Returns when the gradients may change.
  void push(double learning_rate);
  // Ends the worker's clock, after the push of the step.
  void end_clock() {
    ++trained_;
    job_.tables().next_clock();
  }

  // Returns the bytes of pushed gradients, as encoded.
  [[nodiscard]] std::uint64_t bytes_pushed() { return is_server() ? 0 : job_.tables().bytes_pushed() - assigned_; }

  // Notifies the other workers that they may end. Called by the first worker when all data is trained, evaluated and
  // reported. If the first worker dies earlier, another worker becomes the first.
  void confirm_end();
  // Ends the worker's part of the job. The last call of a worker.
  void finish() {
    ended_first_ = is_first();  // after `finish` the shard map has no first worker
    job_.finish();
  }
  // Returns the load of the servers, and the advice that follows, as one line. Empty if no server has sent its load.
  // Called after `finish`.
  [[nodiscard]] std::string load_report();

 private:
  // Assigns the parameters to the table if the servers have no initial values. Throws configuration_error if they have,
  // and the program wrote other values.
  void assign_initial();

  arena& arena_;
  bool sparse_;
  bool assigns_;  // the first worker sends the initial values
  ps::job job_;
  std::mutex mutex_;  // guards the client of `job_` during an evaluation
  std::condition_variable_any evaluated_;
  group workers_;
  group alone_;
  ps::lease lease_;
  // The result of `is_first` while another thread uses the shard map, and after this worker's part has ended.
  std::optional<bool> ended_first_;
  std::uint64_t trained_ = 0;            // pushed batches of the lease
  std::uint64_t assigned_ = 0;           // bytes of assignments, not of gradients
  std::string unsaved_;                  // reason for the failure of the last save
  std::vector<std::uint64_t> elements_;  // the elements whose gradients the next push sends
  std::vector<float> rows_;              // their values
};

}}}  // namespace muster::v0::detail
