// A worker's interface to the tables: pushes, pulls and leases.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/comm/work.hpp>
#include <muster/core/clock.hpp>
#include <muster/ps/lease.hpp>
#include <muster/ps/table.hpp>

namespace muster { inline namespace v0 { namespace ps {

class client;

namespace detail {
class worker_process;
struct open_pull;
}  // namespace detail

/// A push or a pull that may still be in progress. It owns the memory that it reads or writes until it completes.
/// Movable. The destructor of an unfinished pull cancels the pull, which then writes nothing. The destructor of an
/// unfinished push copies the values, and the push continues from the copy.
class [[nodiscard]] pending {
 public:
  pending();  ///< complete from the start
  pending(pending&&) noexcept;
  pending& operator=(pending&&) noexcept;
  ~pending();

  /// Waits until the push or pull is complete. Throws timeout_error, which names the servers that do not answer,
  /// tables_lost if all servers that held a range have died, peer_failure if this worker was fenced, and
  /// configuration_error with the server's text if a server refused the request.
  void wait();
  /// Makes progress without waiting. Returns true when the push or pull is complete. Throws the errors of `wait`; the
  /// time limit counts from the first `test` or `wait_for`.
  bool test() { return wait_for(seconds(0)); }
  /// Waits no longer than `limit`. Returns true when the push or pull is complete. Throws the errors of `test`.
  bool wait_for(seconds limit);
  /// Returns, after a pull is complete, the smallest version of the pulled ranges. The version of a range is the number
  /// of entries in its log. Returns 0 for a push.
  [[nodiscard]] std::uint64_t version() const noexcept;

 private:
  friend class client;
  friend class detail::worker_process;
  struct part {
    range_id range;
    std::uint64_t number;  // number of the push or pull
  };
  void swap(pending& other) noexcept;

  detail::worker_process* process_ = nullptr;
  part first_{};
  std::vector<part> more_;
  std::unique_ptr<detail::open_pull> pull_;
  clock::time_point deadline_{};  // of `test` and `wait_for`; set by the first call
};
static_assert(awaitable_work<pending>);
using muster::operator co_await;

/// Options of a push.
struct push_options {
  std::size_t offset = 0;  ///< dense: the element to which the first value belongs
  /// Multiplies the table's learning rate, or the added values; bulk: the same for all pushes in a clock.
  float scale = 1;
  /// The part of a batch from which the values were computed. Each range applies only one push for each place.
  batch_place place{};
};

/// The use of a server's time, from the first message that the server received on. The server is idle in the rest.
struct server_load {
  double busy = 0;   ///< share of the time in which the server handled messages
  double links = 0;  ///< share of the time in which the server only waited for messages that were being transferred
};

/// The tables of a job, as one worker accesses them. A worker's pushes to one element take effect in the order of the
/// calls, each once. Used by one thread. Every call makes progress.
///
/// `push` and `pull` block. `push_async` and `pull_async` return a `pending`, and block only while the window
/// (`job_options::window`) or the connection to a server is full. The caller's buffers must stay in place and unchanged
/// until the `pending` is complete. A table's number is its index in `job_options::tables`. Throws configuration_error
/// for spans that do not fit the table.
class client {
 public:
  /// Constructed by a job (`job::tables`), valid while the job exists, and owns nothing.
  explicit client(detail::worker_process& process) noexcept : process_(&process) {}

  /// Pushes to a dense table. The first of `values` belongs to the element `push_options::offset`.
  void push(std::uint32_t table, std::span<const float> values, const push_options& options = {}) {
    push_async(table, values, options).wait();
  }
  [[nodiscard]] pending push_async(std::uint32_t table, std::span<const float> values,
                                   const push_options& options = {});
  /// Sets the elements of a dense table to `values`, independently of the update function. The update function's state
  /// is unchanged. Programs initialise a table with this call. Blocks.
  void assign(std::uint32_t table, std::span<const float> values, std::size_t offset = 0);
  /// Reads `values.size()` elements of a dense table, starting with the element `offset`. The job's consistency bounds
  /// the values' staleness.
  void pull(std::uint32_t table, std::span<float> values, std::size_t offset = 0) {
    pull_async(table, values, offset).wait();
  }
  [[nodiscard]] pending pull_async(std::uint32_t table, std::span<float> values, std::size_t offset = 0);

  /// Pushes to a sparse table. Row k of `rows`, `width` floats, belongs to keys[k]. A key may occur twice.
  void push(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<const float> rows,
            const push_options& options = {}) {
    push_async(table, keys, rows, options).wait();
  }
  [[nodiscard]] pending push_async(std::uint32_t table, std::span<const std::uint64_t> keys,
                                   std::span<const float> rows, const push_options& options = {});
  void pull(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<float> rows) {
    pull_async(table, keys, rows).wait();
  }
  [[nodiscard]] pending pull_async(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<float> rows);

  /// Returns all bytes of a range for a checkpoint (`save_tables`), including the state of the update function. Blocks.
  [[nodiscard]] std::vector<std::byte> save(range_id range);
  /// Restores the elements or rows of a table from the result of `save`, also from a different layout. Blocks. Throws
  /// data_error for bytes that do not belong to such a table.
  void restore(std::uint32_t table, std::span<const std::byte> saved);

  /// Marks these places (`push_options::place`) as applied, because the range was restored with their pushes. The range
  /// ignores further pushes with these places. Blocks.
  void restore_places(range_id range, std::span<const std::uint64_t> places);

  /// Waits until all of the worker's pushes are committed.
  void flush();
  /// Starts a table of leases (`table_spec::leases`), unless a worker has started the table already. The servers lease
  /// the batches in `left` first, which precede the plan, and then the batches of the plan. Blocks.
  void begin_order(std::uint32_t table, const order_plan& plan, std::span<const lease> left = {});
  /// Requests a lease and reports which batches this worker has finished: the batches in closed clocks. Without a
  /// granted lease this worker's clock advances to the clock at which the worker continues. After `lease::kind::later`
  /// the worker should request again. When a worker leaves, is fenced or dies, its unfinished batches are leased to
  /// other workers. Blocks only until the answer arrives.
  [[nodiscard]] lease next_lease(std::uint32_t table);
  /// Confirms that all batches before `steps` are saved, or need no save. The servers then lease the following batches.
  /// `steps` is `lease::steps` of the answer `lease::kind::save`; another number has no effect. Blocks.
  void confirm_save(std::uint32_t table, std::uint64_t steps);
  /// Confirms that the final work (`lease::kind::last`) is done. Later requests return `lease::kind::over`. Blocks.
  void confirm_end(std::uint32_t table);

  /// Ends a clock of this worker. Does not wait for slower workers: a later pull does, see `consistency`.
  void next_clock();
  /// Returns the number of clocks that this worker has ended, including clocks whose pushes are not acknowledged yet.
  [[nodiscard]] std::uint64_t clock_now() const noexcept;
  /// Changes the number of servers. The servers and the hot spares are the candidates. Ranges move to added servers and
  /// away from removed servers, while pushes and pulls continue. Waits until the change is in the store, but not until
  /// the ranges have moved: until then `servers` counts removed servers. Throws configuration_error for more servers
  /// than live candidates, and timeout_error if the store does not answer.
  void request_servers(std::size_t servers);
  /// Makes progress once, without waiting.
  void progress();
  /// Returns the bytes of values and keys that were pushed so far, as encoded. Repeated sends do not count.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept;
  /// Returns the load of each server at its last answer to a heartbeat or to the farewell of this worker
  /// (`job::finish`).
  [[nodiscard]] std::vector<server_load> server_loads() const;
  /// Returns the number of servers in this worker's shard map. Removed servers count until their ranges have moved.
  [[nodiscard]] std::size_t servers() const noexcept;
  /// Returns the number of workers that are neither finished nor fenced. `is_first_worker` returns true if this worker
  /// is the first in that list.
  [[nodiscard]] std::size_t workers() const noexcept;
  [[nodiscard]] bool is_first_worker() const noexcept;

 private:
  friend class detail::worker_process;
  pending push_dense(std::uint32_t table, std::span<const float> values, const push_options& options,
                     std::uint8_t flags);

  void send_order_request(std::uint32_t table, std::uint32_t request, std::uint64_t place,
                          std::vector<std::byte> plan = {});
  [[nodiscard]] lease pull_lease(std::uint32_t table);
  // Pushes elements or rows of a range from a checkpoint, with the state of the update function (flag `restores`).
  pending push_restored(range_id range, std::size_t offset, std::size_t count, std::vector<std::byte> payload);

  detail::worker_process* process_;
};

}}}  // namespace muster::v0::ps

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/ps/detail/definitions.hpp>
#endif
