// The order of a training's samples as the servers of a job hand it out: leases.
#pragma once

#include <cstdint>

#include <muster/data/batch_shard.hpp>
#include <muster/data/cursor.hpp>

namespace muster { inline namespace v0 { namespace ps {

/// What a table of leases hands out; see `client::begin_order`.
struct order_plan {
  cursor from{};            ///< the first batch
  std::uint64_t steps = 0;  ///< batches before it

  std::uint64_t epochs_limit = 0;  ///< ends with so many epochs; 0: by `steps_limit`
  std::uint64_t steps_limit = 0;   ///< ends with so many batches; 0: by `epochs_limit`
  /// After so many epochs or batches, and at the end, no lease is given until `client::pass_save` is called: what was
  /// pushed is then of all batches before that place, and of none behind it. 0: never.
  std::uint64_t epochs_to_save = 0;
  std::uint64_t steps_to_save = 0;
};

/// A part of some batches that follow each other, for one worker alone: the same part of each. It trains one of them a
/// clock. When it leaves the job, others get what it has not finished.
struct lease {
  enum class kind : std::uint32_t {
    granted,  ///< it is the asking worker's
    unknown,  ///< no worker has begun the order yet: the first has to
    later,    ///< other workers have all there is, and may die: to be asked again
    save,     ///< all before `from` is trained and counts: the tables can be saved, then `client::pass_save`
    last,     ///< all is trained and counts: one worker does what is left, then `client::pass_end`; another if it dies
    over      ///< all is trained and counts, and nothing is left
  };
  kind what = kind::later;
  std::uint32_t part = 0;     ///< of `parts` in each batch
  std::uint32_t parts = 1;    ///< workers when the batches were assigned
  std::uint32_t batches = 0;  ///< of one epoch
  std::uint64_t clock = 0;    ///< of the worker at its first batch
  std::uint64_t steps = 0;    ///< batches before the first, of all epochs: the same number stands for the same samples
  std::uint64_t settled = 0;  ///< batches before which everything is trained and counts
  cursor from{};              ///< of the first

  /// That part, as a loader takes it.
  [[nodiscard]] batch_shard shard() const noexcept { return {static_cast<int>(part), static_cast<int>(parts)}; }
};

/// What a push was computed from: one part of one batch. Of pushes with the same place a server applies one, whatever
/// worker each is from.
struct batch_place {
  std::uint64_t number = 0;   ///< 0: of no lease
  std::uint64_t settled = 0;  ///< all smaller numbers were applied everywhere

  /// A batch is cut into no more.
  static constexpr std::uint64_t most_parts = 4096;
  /// Of no lease.
  batch_place() = default;
  /// The lease's part of its batch of that number, from 0.
  batch_place(const lease& of, std::uint64_t batch) noexcept
      : number((of.steps + batch + 1) * most_parts + of.part), settled((of.settled + 1) * most_parts) {}
};

}}}  // namespace muster::v0::ps
