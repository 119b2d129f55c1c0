// What a worker pushes and pulls by.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <muster/ps/lease.hpp>
#include <muster/ps/table.hpp>

namespace muster { inline namespace v0 { namespace ps {

class client;

namespace detail {
class worker_process;
struct open_pull;
}  // namespace detail

/// A push or a pull under way: what it reads or writes belongs to it until it is done. Moves; is taken back when it is
/// destroyed unfinished: a pull then writes nothing any more; a push goes on from a copy.
class [[nodiscard]] pending {
 public:
  pending();  ///< done
  pending(pending&&) noexcept;
  pending& operator=(pending&&) noexcept;
  ~pending();

  /// Waits for it. Throws timeout_error, naming the servers that do not answer, tables_lost where all that held a range
  /// have died, peer_failure where this worker was fenced, and configuration_error with a server's words where it
  /// refused it.
  void wait();
  /// Of a pull that is done: the fewest updates that any of its ranges had seen.
  [[nodiscard]] std::uint64_t version() const noexcept;

 private:
  friend class client;
  friend class detail::worker_process;
  struct part {
    range_id range;
    std::uint64_t number;  // of the push or pull
  };
  void swap(pending& other) noexcept;

  detail::worker_process* of_ = nullptr;
  part first_{};
  std::vector<part> more_;
  std::unique_ptr<detail::open_pull> pull_;
};

/// How a push is to be taken.
struct push_options {
  std::size_t offset = 0;  ///< dense: the element that the first value is for
  float scale = 1;  ///< times the table's learning rate, or times what is added; bulk: the same in all of a clock
  /// The part of a batch that the values were computed from: of several pushes of one, each range applies one.
  batch_place place{};
};

/// The tables of a job, as one worker reaches them. Pushes of one worker to one element take effect in their order,
/// each once. Used by one thread, and every call makes progress.
///
/// `push` and `pull` wait; their `_async` twins return something to wait for, and what they were given
/// stays where it is and as it is until then. Tables are numbered as in `job_options`. Throws configuration_error for
/// spans that do not fit the table.
class client {
 public:
  /// Made by a job (`job::tables`) and valid as long as it; owns nothing.
  explicit client(detail::worker_process& of) noexcept : of_(&of) {}

  /// Of a dense table: `values` are the elements from the offset on (`push_options`, or `offset` of a pull, in
  /// elements).
  void push(std::uint32_t table, std::span<const float> values, const push_options& how = {}) {
    push_async(table, values, how).wait();
  }
  [[nodiscard]] pending push_async(std::uint32_t table, std::span<const float> values, const push_options& how = {});
  /// The values become these, whatever the table's update function is, and what it remembers of them stays: how a
  /// table gets what it begins with. Waits.
  void assign(std::uint32_t table, std::span<const float> values, std::size_t offset = 0);
  /// Of a dense table: reads `values.size()` elements from `offset` on, as fresh as the job's consistency has it.
  void pull(std::uint32_t table, std::span<float> values, std::size_t offset = 0) {
    pull_async(table, values, offset).wait();
  }
  [[nodiscard]] pending pull_async(std::uint32_t table, std::span<float> values, std::size_t offset = 0);

  /// Of a sparse table: row k of `rows`, `width` floats each, is of keys[k]. A key may come twice.
  void push(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<const float> rows,
            const push_options& how = {}) {
    push_async(table, keys, rows, how).wait();
  }
  [[nodiscard]] pending push_async(std::uint32_t table, std::span<const std::uint64_t> keys,
                                   std::span<const float> rows, const push_options& how = {});
  void pull(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<float> rows) {
    pull_async(table, keys, rows).wait();
  }
  [[nodiscard]] pending pull_async(std::uint32_t table, std::span<const std::uint64_t> keys, std::span<float> rows);

  /// All bytes of a range, with the state of its update function, for a checkpoint (`save_tables`). Waits.
  [[nodiscard]] std::vector<std::byte> save(range_id range);
  /// Restores the elements or rows of a table from the bytes of a `save`, of this layout or another. Waits. Throws
  /// data_error for bytes that do not belong to such a table.
  void restore(std::uint32_t table, std::span<const std::byte> saved);

  /// That range applies no push of these places any more (`push_options::place`): it was restored with them. Waits.
  void restore_places(range_id range, std::span<const std::uint64_t> places);

  /// Waits until all pushes of this worker are committed.
  void flush();
  /// Of a table of leases (`table_spec::leases`): what it hands out from now on, unless a worker has begun it already:
  /// first `left`, of batches before the plan. Waits.
  void begin_order(std::uint32_t table, const order_plan& plan, std::span<const lease> left = {});
  /// Asks that table for a part of some batches, and tells it what this worker has finished: the batches of its closed
  /// clocks. What it is told may be that there is none now: then the clock has moved to where this worker is to go on,
  /// and it is to ask again in a while. What a worker has not finished when it leaves the job, is fenced or dies,
  /// others get. Waits for the answer alone.
  [[nodiscard]] lease next_lease(std::uint32_t table);
  /// All before that place is saved, or need not be: what follows is handed out. Waits.
  void pass_save(std::uint32_t table, std::uint64_t steps);
  /// What was left to do at the end is done (`lease::kind::last`): `over` is told. Waits.
  void pass_end(std::uint32_t table);

  /// Ends a clock of this worker; may wait for slower workers, see `consistency`.
  void next_clock();
  [[nodiscard]] std::uint64_t clock_now() const noexcept;
  /// Changes the number of servers, among the servers and hot spares: ranges move to added servers and from removed
  /// ones, while pushes and pulls continue. Waits until the change is in the store, not until the ranges have moved:
  /// `servers` counts removed ones until then. Throws configuration_error for more than the ranks that live,
  /// timeout_error when the store does not answer.
  void serve_by(std::size_t servers);
  /// Makes progress once, without waiting.
  void progress();
  /// Bytes of values and keys that were pushed so far, encoded, without repeated sends.
  [[nodiscard]] std::uint64_t bytes_pushed() const noexcept;
  /// Servers by this worker's shard map, with removed ones until their ranges have moved.
  [[nodiscard]] std::size_t servers() const noexcept;
  /// Workers that have not finished and are not fenced; and whether this one is the first of them.
  [[nodiscard]] std::size_t workers() const noexcept;
  [[nodiscard]] bool is_first_worker() const noexcept;

 private:
  friend class detail::worker_process;
  pending push_dense(std::uint32_t table, std::span<const float> values, const push_options& how, std::uint8_t flags);

  void tell_order(std::uint32_t table, std::uint32_t word, std::uint64_t place, std::vector<std::byte> plan = {});
  [[nodiscard]] lease ask_order(std::uint32_t table);
  pending push_whole(range_id range, std::size_t offset, std::size_t count, std::vector<std::byte> part);

  detail::worker_process* of_;
};

}}}  // namespace muster::v0::ps
