// The order of a training's samples, assigned in leases: a state machine without messages, clocks or threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/ps/lease.hpp>

#include <muster/core/wire.hpp>
#include <muster/ps/protocol/message.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// The request that a worker pushes to a table of leases, in `message::offset`.
enum class order_request : std::uint32_t {
  /// place: the clock for which the worker requests a batch; settled: the number of clocks that it has closed.
  claim = 0,
  begin = 1,  ///< payload: an `order_plan`, then leases of earlier batches that are not trained
  pass = 2,   ///< place: the number of batches before the save, which is confirmed; another number has no effect
  end = 3     ///< the final work is done
};

/// Assigns batches in blocks. A block is a number of consecutive batches, divided into one part for each present
/// worker. A worker holds one part of a block. When a worker leaves, its unfinished batches are assigned again before
/// later batches.
///
/// In the bulk-synchronous model parts are bound to clocks: each worker has its own part, all with the same clocks, so
/// that the sum of a clock is from one batch. Otherwise a worker that has finished takes the next free part, preferably
/// the part that was assigned to it.
///
/// Equal entries produce equal state at every server of the range.
class epoch_order {
 public:
  explicit epoch_order(bool bulk = false) noexcept : bulk_(bulk) {}

  /// Returns why a push or pull is invalid for a table of leases, or an empty string if it is valid.
  [[nodiscard]] static std::string problem_with(const message& request);
  /// Applies an entry of the range's log. The payload of a claim is the list of workers in the map.
  void apply(const log_entry& entry);
  /// Returns the answer to a worker that requests a batch for this clock.
  [[nodiscard]] lease answer(const member& worker, std::uint64_t clock) const;
  /// Returns the workers that hold leases or to which parts are assigned, sorted.
  [[nodiscard]] std::vector<member> workers_with_parts() const;
  /// Returns the plan from which a later `begin` continues, together with `leases_left`. Null before the order has
  /// started.
  [[nodiscard]] const order_plan* plan() const noexcept { return started_ ? &plan_ : nullptr; }
  /// Returns all leases that are not finished: held by a worker, assigned, or returned by a worker that left.
  [[nodiscard]] std::vector<lease> leases_left() const;

  void save(muster::detail::wire_writer& writer) const;
  [[nodiscard]] bool load(muster::detail::wire_reader& reader);

 private:
  // A part of some batches, with the worker to which it is assigned.
  struct assignment {
    member worker;
    lease granted;
  };
  // Gives the worker a part from `clock` on: its assigned part, or a part of a new block, which is divided among
  // `workers`. Does nothing if the worker holds a part for this clock.
  void claim(const member& worker, std::uint64_t clock, std::span<const member> workers);
  // Assigns a part of the next block to each worker, or returned parts if there are any.
  void assign_block(std::uint64_t clock, std::span<const member> workers);
  void assign_returned(std::uint64_t clock, std::span<const member> workers);
  // Removes the worker's batches before clock `end_clock`, which are finished, from its claimed parts.
  void finish_batches(const member& worker, std::uint64_t end_clock);
  // Moves all parts of a worker that left to `unassigned_`.
  void return_leases(const member& worker);
  // Returns the claimed part that contains the clock; null if the process holds none.
  [[nodiscard]] const assignment* held_by(const member& node, std::uint64_t clock) const noexcept;
  [[nodiscard]] bool epoch_is_over() const noexcept;
  // Returns true if the plan's limit of epochs or steps is reached.
  [[nodiscard]] bool is_at_end() const noexcept;
  // Returns true if the batches up to here have to be saved before more batches are assigned.
  [[nodiscard]] bool is_save_due() const noexcept;
  // Returns the number of batches in the next block, for that number of parts.
  [[nodiscard]] std::uint32_t block_length(std::uint32_t part_count) const noexcept;

  bool bulk_;
  bool started_ = false;
  order_plan plan_;                   // `from` and `steps` describe the next batch to assign
  std::uint64_t saved_ = 0;           // steps at the last confirmed save
  bool end_confirmed_ = false;        // the end was confirmed
  std::uint64_t clock_ = 0;           // the first clock after every claimed part, in bulk after every assigned part
  std::vector<assignment> assigned_;  // assigned, not claimed yet
  std::vector<assignment> claimed_;   // claimed, without the finished batches
  std::vector<lease> unassigned_;     // parts of workers that left, to be assigned first
};

}}}  // namespace muster::v0::ps

#include <muster/ps/protocol/detail/order-inl.hpp>
