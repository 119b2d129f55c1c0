// The order of a training's samples, handed out in leases: a state machine without messages, clocks or threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <muster/ps/lease.hpp>

#include "../../core/wire.hpp"
#include "message.hpp"

namespace muster { inline namespace v0 { namespace ps {

/// What workers push to a table of leases, in `message::offset`.
enum class order_word : std::uint32_t {
  claim = 0,  ///< place: the clock that the worker wants a batch for; settled: clocks that it has closed
  begin = 1,  ///< payload: order_plan, and behind it leases of batches before it that are not trained
  pass = 2,   ///< place: steps; the batches behind these may be handed out
  end = 3     ///< all is done that was left to do
};

/// Assigns batches in blocks: some that follow each other, cut into one part for each worker of the moment. A worker
/// gets one part of a block, and what it has not finished when it leaves is assigned again, before what follows.
///
/// The parts of a block are by the workers' clocks in bulk: each has its own, of the same clocks, so that a clock's sum
/// is of one batch. Otherwise a worker that is done takes the next part that is left, preferably its own.
///
/// The same entries make the same state at every server of the range.
class epoch_order {
 public:
  explicit epoch_order(bool bulk = false) noexcept : bulk_(bulk) {}

  /// Why a push or pull is none of such a table; empty where it is.
  [[nodiscard]] static std::string problem_with(const message& asked);
  /// An entry of the range's log; the payload of a claim is the workers of the map.
  void apply(const log_entry& entry);
  /// What that worker is told that wants a batch for this clock.
  [[nodiscard]] lease answer(const member& to, std::uint64_t clock) const;
  /// The workers that have leases.
  [[nodiscard]] std::vector<member> holders() const;
  /// What `begin` goes on from, with `leases_left` behind it; nothing before the order has begun.
  [[nodiscard]] const order_plan* plan() const noexcept { return begun_ ? &plan_ : nullptr; }
  /// What was assigned and is not finished, whatever worker has it.
  [[nodiscard]] std::vector<lease> leases_left() const;

  void save(muster::detail::wire_writer& to) const;
  [[nodiscard]] bool load(muster::detail::wire_reader& from);

 private:
  // A part of batches, with the worker that it is for.
  struct dealt {
    member to;
    lease what;
  };
  void claim(const member& by, std::uint64_t clock, std::span<const member> workers);
  void deal(std::uint64_t clock, std::span<const member> workers);
  void deal_returned(std::uint64_t clock, std::span<const member> workers);
  void close(const member& by, std::uint64_t clocks);
  void give_up(const member& gone);
  [[nodiscard]] const dealt* held_by(const member& node, std::uint64_t clock) const noexcept;
  [[nodiscard]] bool epoch_is_over() const noexcept;
  [[nodiscard]] bool ends() const noexcept;
  [[nodiscard]] bool stops_to_save() const noexcept;
  [[nodiscard]] std::uint32_t block_length(std::uint32_t parts) const noexcept;

  bool bulk_;
  bool begun_ = false;
  order_plan plan_;          // `from` and `steps` are of what is assigned next
  std::uint64_t saved_ = 0;  // steps, at the last place that was passed
  bool concluded_ = false;   // the end was passed
  std::uint64_t clock_ = 0;  // behind those of all parts that were assigned
  std::vector<dealt> open_;  // not claimed yet
  std::vector<dealt> held_;
  std::vector<lease> returned_;
};

}}}  // namespace muster::v0::ps
